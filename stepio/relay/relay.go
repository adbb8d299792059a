// Package relay is stepd's half of the tasks' output where they do not have the
// client's own descriptors: it takes what they write from one pipe to another, whose
// other end the launching client reads. The kernel moves the pages (splice(2)), so
// that no byte comes into stepd's memory; they are counted on their way.
//
// A reader beside the launcher (one that attaches later, a replay) hooks in by
// SetTap. Begin with New.
package relay

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/printable"
	"stepd/step"
	"stepd/step/launch"
)

const (
	// turn is how many moves a stream gets before it is the next one's turn.
	turn = 32
	// moveMax is the most that is asked for at once: what a pipe may hold.
	moveMax = 1 << 20
	// pipeSize is what the pipes of the first wideMax streams hold; the others hold
	// the kernel's 64 KiB.
	pipeSize, wideMax = 256 << 10, 128
	// tapMax is the most that a tap is given at once.
	tapMax = 64 << 10
)

// Tap hears what tasks write, in order, as it passes: fd is 1 or 2, rank the task's or
// launch.AllRanks where they share the stream. data is valid during the call alone, which
// must not block: it holds up all streams of the step. An empty data is the stream's
// end. The launcher's back-pressure holds: what it has no room for is not heard yet.
type Tap func(fd, rank int, data []byte)

// Relay has the streams of one step. Methods may be called from any goroutine.
//
// One goroutine, the loop, moves everything, and holds no lock meanwhile: a reader can
// hold the lock that its pipe has in the kernel for as long as it likes (while a page
// of its own does not come), and must not keep others from the step.
type Relay struct {
	most        int
	epoll, wake int           // there when there are streams
	gone        chan struct{} // closed when the loop has ended; nil without streams
	loop        loop

	tapping sync.Mutex // held while the tap is called; the first of both locks
	tap     Tap        // guarded by tapping

	mu      sync.Mutex
	streams []*stream     // guarded by mu; the index is epoll's word for it
	open    int           // guarded by mu: of streams
	all     chan struct{} // guarded by mu: closed when open is 0 and Drain was called; nil without streams
	tapped  bool          // guarded by mu: there is a tap
	passed  [3]int64      // guarded by mu: bytes, by stream
	ending  bool          // guarded by mu: Drain was called
	stopped bool          // guarded by mu: the loop is to end
}

// loop is what the loop alone has.
type loop struct {
	ready          []*stream // there may be something to move
	news           []*stream // of this round; kept for its room
	buf            []byte    // for the tap
	tapped, ending bool      // as of the beginning of this round
}

// stream is one pipe of the tasks.
type stream struct {
	fd, rank int
	inode    uint64 // of the pipe from the tasks
	ended    bool   // guarded by Relay.mu: src and dst are closed

	// The loop's own, once it has begun:
	src, dst int  // the pipe from the tasks, and that to the launcher
	queued   bool // it is in ready
	roomy    bool // dst was made to hold all that src may have
}

// New makes a relay without streams: it costs nothing until Add, which takes most of
// them at the most, and none where that is 0.
func New(most int) *Relay { return &Relay{most: most} }

// SetTap makes t hear what passes from now on, nil ends that; when it returns, no other
// one is called any more. A tap changes nothing for the tasks: where the launcher does
// not read any more they get SIGPIPE, as from any pipe.
func (r *Relay) SetTap(t Tap) {
	r.tapping.Lock()
	defer r.tapping.Unlock()
	r.tap = t
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tapped = t != nil
}

// hears gives the tap what it is to hear.
func (r *Relay) hears(s *stream, data []byte) {
	r.tapping.Lock()
	defer r.tapping.Unlock()
	if r.tap != nil {
		r.tap(s.fd, s.rank, data)
	}
}

// Add puts a pipe between the tasks and dst, a pipe of the launcher's that it takes
// over unless it fails, as stream fd (1 or 2) of a rank or of launch.AllRanks. It
// returns the tasks' end, a plain descriptor that belongs to uid and blocks: the
// caller's to hand on and close.
func (r *Relay) Add(fd, rank, dst int, uid uint32) (tasks int, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot make a pipe for stream %d of rank %d: %w", fd, rank, err)
		}
	}()
	if fd != 1 && fd != 2 {
		return -1, errors.New("only what tasks write is passed on")
	}
	var st unix.Stat_t
	if err := unix.Fstat(dst, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
		return -1, errors.New("the launcher's end is no pipe")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ending:
		return -1, errors.New("the step is ending")
	case len(r.streams) >= r.most:
		return -1, fmt.Errorf("it has room for %d streams", r.most)
	}
	if err := r.begin(); err != nil {
		return -1, err
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, err
	}
	// The tasks may open their end to read, and take what we have just seen.
	if err := unix.SetNonblock(p[0], true); err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return -1, err
	}
	// The first ones are wide, so that the tasks and we take turns less often.
	if len(r.streams) < wideMax {
		_, _ = unix.FcntlInt(uintptr(p[0]), unix.F_SETPIPE_SZ, pipeSize)
	}
	err = unix.Fchown(p[1], int(uid), -1)
	if err == nil {
		err = unix.Fstat(p[0], &st)
	}
	if err == nil {
		err = r.watch(p[0], dst)
	}
	if err != nil {
		unix.Close(p[0])
		unix.Close(p[1])
		return -1, err
	}
	r.streams = append(r.streams, &stream{fd: fd, rank: rank, src: p[0], dst: dst, inode: st.Ino})
	r.open++
	return p[1], nil
}

// begin starts the loop. It is called with mu held.
func (r *Relay) begin() error {
	if r.all != nil {
		return nil
	}
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: wakeUp})
	}
	if err != nil {
		unix.Close(epoll)
		unix.Close(wake)
		return err
	}
	r.epoll, r.wake, r.all, r.gone = epoll, wake, make(chan struct{}), make(chan struct{})
	go r.run()
	return nil
}

// wakeUp is epoll's word for a change of ending or stopped.
const wakeUp = -1

// watch has both ends of the next stream watched. Edge by edge: a launcher that does
// not read must not make the loop spin.
func (r *Relay) watch(src, dst int) error {
	for fd, mask := range map[int]uint32{src: unix.EPOLLIN, dst: unix.EPOLLOUT} {
		ev := unix.EpollEvent{Events: mask | unix.EPOLLET, Fd: int32(len(r.streams))}
		if err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
			return err
		}
	}
	return nil
}

// run moves what comes until stop. It blocks a thread of its own: to be woken through
// the runtime's poller takes twice as long, for each of the pipes' turns.
func (r *Relay) run() {
	defer close(r.gone)
	_ = linux.BatchThread() // without it the bytes only take longer
	var events [64]unix.EpollEvent
	for timeout := -1; ; {
		n, err := unix.EpollWait(r.epoll, events[:], timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // internal error: the descriptor is no epoll any more
		}
		streams, stopped := r.look(events[:max(n, 0)])
		if stopped {
			return
		}
		timeout = -1
		if r.round(streams) {
			timeout = 0
		}
	}
}

// look says which streams have news, until it is called again, and what else has
// changed.
func (r *Relay) look(events []unix.EpollEvent) (news []*stream, stopped bool) {
	var word [8]byte
	news = r.loop.news[:0]
	defer func() { r.loop.news = news }()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ending && !r.loop.ending {
		news = append(news, r.streams...) // a stream without writers is to end
	}
	r.loop.tapped, r.loop.ending = r.tapped, r.ending
	for _, e := range events {
		switch i := int(e.Fd); {
		case i == wakeUp:
			_, _ = unix.Read(r.wake, word[:]) // it does not block
		case i >= 0 && i < len(r.streams):
			news = append(news, r.streams[i])
		}
	}
	return news, r.stopped
}

// wakeLoop makes the loop look.
func (r *Relay) wakeLoop() {
	one := [8]byte{1}
	_, _ = unix.Write(r.wake, one[:]) // an eventfd with room takes it
}

// stopWait is how long the loop may take to its end: it may stand in the kernel for as
// long as a launcher likes.
const stopWait = time.Second

// stop ends the loop, closes what is open still, and is called once, after begin. A
// loop that does not end keeps what it has until stepd is gone.
func (r *Relay) stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	r.wakeLoop()
	select {
	case <-r.gone:
	case <-time.After(stopWait):
		return
	}
	for _, s := range r.streams { // nothing is added any more
		r.end(s)
	}
	unix.Close(r.epoll)
	unix.Close(r.wake)
}

// round moves what is ready, and reports whether some streams want another turn.
func (r *Relay) round(news []*stream) (more bool) {
	l := &r.loop
	for _, s := range news {
		if !s.queued {
			s.queued = true
			l.ready = append(l.ready, s)
		}
	}
	left := l.ready[:0]
	for _, s := range l.ready {
		if s.queued = r.move(s); s.queued {
			left = append(left, s)
		}
	}
	clear(l.ready[len(left):])
	l.ready = left
	return len(left) > 0
}

// move passes on what there is, for one turn, and reports whether there may be more.
func (r *Relay) move(s *stream) (more bool) {
	passed := int64(0)
	defer func() { r.count(s, passed) }()
	for range turn {
		if s.src < 0 {
			return false
		}
		n, err := r.once(s)
		switch {
		case n > 0:
			passed += n
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return r.loop.ending && r.settle(s)
		default:
			// The end of file, or no reader is left (EPIPE): the tasks are to know.
			r.count(s, passed)
			passed = 0
			r.end(s)
			return false
		}
	}
	return true
}

func (r *Relay) count(s *stream, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed[s.fd] += n
}

// once moves some bytes; none without an error is the end of file.
func (r *Relay) once(s *stream) (int64, error) {
	if !r.loop.tapped {
		return unix.Splice(s.src, nil, s.dst, nil, moveMax, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	}
	// What the launcher has room for goes there first, and is heard then.
	n, err := unix.Tee(s.src, s.dst, tapMax, unix.SPLICE_F_NONBLOCK)
	if n <= 0 || err != nil {
		return n, err
	}
	if r.loop.buf == nil {
		r.loop.buf = make([]byte, tapMax)
	}
	got := 0
	for ok := true; ok; ok = errors.Is(err, unix.EINTR) {
		got, err = unix.Read(s.src, r.loop.buf[:n])
	}
	if got > 0 {
		r.hears(s, r.loop.buf[:got])
	}
	return int64(got), err
}

// settle ends a stream that has no writers any more, once the step ends: it lets the
// launcher's pipe take what is left, so that a launcher that is slow, or stopped, does
// not keep the step. It reports whether there is more to move.
func (r *Relay) settle(s *stream) (more bool) {
	p := []unix.PollFd{{Fd: int32(s.src), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); n != 1 || err != nil || p[0].Revents&unix.POLLHUP == 0 {
		return false
	}
	if p[0].Revents&unix.POLLIN == 0 {
		r.end(s) // a full pipe behind it has kept splice(2) from saying so
		return false
	}
	if s.roomy {
		return false
	}
	s.roomy = true
	left, err1 := unix.FcntlInt(uintptr(s.src), unix.F_GETPIPE_SZ, 0)
	has, err2 := unix.FcntlInt(uintptr(s.dst), unix.F_GETPIPE_SZ, 0)
	if err1 != nil || err2 != nil {
		return false
	}
	_, err := unix.FcntlInt(uintptr(s.dst), unix.F_SETPIPE_SZ, has+left)
	return err == nil
}

// end closes a stream, unless it is closed. The loop calls it, and stop after it.
func (r *Relay) end(s *stream) {
	if s.src < 0 {
		return
	}
	// The launcher has dst's open file as well: closing ours does not take it out.
	for _, fd := range []int{s.src, s.dst} {
		_ = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		unix.Close(fd)
	}
	s.src, s.dst = -1, -1
	r.hears(s, nil)
	r.mu.Lock()
	defer r.mu.Unlock()
	s.ended = true
	if r.open--; r.open == 0 && r.ending {
		close(r.all)
	}
}

// Used reports whether anything comes by here.
func (r *Relay) Used() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.streams) > 0
}

// Fill writes how many bytes have passed into the record. What goes to the client by
// its own descriptors, or to files, is not counted, and stays nil.
func (r *Relay) Fill(rec *step.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var there [3]bool
	for _, s := range r.streams {
		there[s.fd] = true
	}
	for fd, to := range map[int]**int64{1: &rec.StdoutBytes, 2: &rec.StderrBytes} {
		if there[fd] {
			*to = new(r.passed[fd])
		}
	}
}

// Drain returns when the last byte that the tasks wrote has gone to the launcher: no
// process of the step is left. A stream that another process keeps open is closed
// after limit, and reported. It is called once; nothing passes any more after it.
func (r *Relay) Drain(limit time.Duration) (held []launch.Held) {
	r.mu.Lock()
	r.ending = true
	all := r.all
	if all != nil && r.open == 0 {
		close(all)
	}
	r.mu.Unlock()
	if all == nil {
		return nil
	}
	r.wakeLoop()
	select {
	case <-all:
	case <-time.After(limit):
		held = r.held()
	}
	r.stop()
	return held
}

// held finds out who holds what is open still.
func (r *Relay) held() (held []launch.Held) {
	writers := make(map[uint64]launch.Held)
	r.mu.Lock()
	for _, s := range r.streams {
		if !s.ended {
			writers[s.inode] = launch.Held{FD: s.fd, Rank: s.rank}
		}
	}
	r.mu.Unlock()
	FindWriters(writers)
	for _, s := range r.streams { // nothing is added any more
		if h, ok := writers[s.inode]; ok {
			held = append(held, h)
		}
	}
	return held
}

// FindWriters looks for a process that may write to each of the pipes, by inode, and
// puts it into the Held of that. It reads all of /proc.
func FindWriters(pipes map[uint64]launch.Held) {
	found := 0
	procs, _ := os.ReadDir("/proc")
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := "/proc/" + p.Name()
		fds, err := os.ReadDir(dir + "/fd")
		if err != nil {
			continue // it has ended
		}
		for _, f := range fds {
			link, err := os.Readlink(dir + "/fd/" + f.Name())
			text, ok := strings.CutPrefix(link, "pipe:[")
			if err != nil || !ok {
				continue
			}
			inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 64)
			h, asked := pipes[inode]
			if err != nil || !asked || h.PID != 0 || !writes(dir+"/fdinfo/"+f.Name()) {
				continue
			}
			h.PID, h.Command, h.UID = pid, command(dir), owner(dir)
			pipes[inode] = h
			if found++; found == len(pipes) {
				return
			}
		}
	}
}

// writes reports whether a descriptor was opened for writing (proc(5), fdinfo).
func writes(fdinfo string) bool {
	b, err := os.ReadFile(fdinfo)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if text, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(text), 8, 64)
			return err == nil && flags&unix.O_ACCMODE != unix.O_RDONLY
		}
	}
	return false
}

// commandMax bounds a command line that is reported.
const commandMax = 80

// command is a process's command line, or its name where it has none.
func command(dir string) string {
	b, _ := os.ReadFile(dir + "/cmdline")
	if b = bytes.TrimRight(b, "\x00"); len(b) == 0 {
		b, _ = os.ReadFile(dir + "/comm")
	}
	words := string(bytes.ReplaceAll(b[:min(len(b), commandMax)], []byte{0}, []byte{' '}))
	return strings.TrimSpace(printable.Line(words, 0)) // printed as one line, in a log or on a terminal
}

func owner(dir string) uint32 {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ^uint32(0)
	}
	return st.Uid
}
