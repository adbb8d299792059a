// Package relay is stepd's half of the tasks' output where they do not have the
// client's own descriptors: it takes what they write from one pipe to another, whose
// other end the launching client reads. The kernel moves the pages (splice(2)), so
// that no byte comes into stepd's memory; they are counted on their way.
//
// A reader beside the launcher (one that attaches later, a replay) hooks in by
// SetTap. Begin with New.
package relay

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"stepd/step"
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
// step.AllRanks where they share the stream. data is valid during the call alone, which
// must not block: it holds up all streams of the step. An empty data is the stream's
// end. The launcher's back-pressure holds: what it has no room for is not heard yet.
type Tap func(fd, rank int, data []byte)

// Relay has the streams of one step. Methods may be called from any goroutine.
type Relay struct {
	most        int
	epoll, wake int // there when there are streams
	loop        sync.WaitGroup

	mu      sync.Mutex
	streams []*stream     // guarded by mu; the index is epoll's word for it
	ready   []*stream     // guarded by mu: there may be something to move
	open    int           // guarded by mu: of streams
	all     chan struct{} // guarded by mu: closed when open is 0 and Drain was called; nil without streams
	tap     Tap           // guarded by mu
	buf     []byte        // guarded by mu: for the tap
	passed  [3]int64      // guarded by mu: bytes, by stream
	counts  [3]bool       // guarded by mu: something of the stream comes by here
	ending  bool          // guarded by mu: Drain was called
}

// stream is one pipe of the tasks. Its fields are guarded by Relay.mu.
type stream struct {
	fd, rank int
	src      int    // the pipe from the tasks; -1 when it has ended
	dst      int    // the pipe to the launcher; -1 when nobody reads
	inode    uint64 // of the former
	queued   bool   // it is in ready
	roomy    bool   // dst was made to hold all that src may have
}

// New makes a relay without streams: it costs nothing until Add, which takes most of
// them at the most.
func New(most int) *Relay { return &Relay{most: most} }

// SetTap makes t hear what passes from now on, nil nobody. With one, a stream whose
// launcher is gone is read on; without, its tasks get SIGPIPE, as from any pipe that
// nobody reads.
func (r *Relay) SetTap(t Tap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tap = t
	if t != nil && r.buf == nil {
		r.buf = make([]byte, tapMax)
	}
}

// Add puts a pipe between the tasks and dst, a pipe of the launcher's that it takes
// over unless it fails, as stream fd (1 or 2) of a rank or of step.AllRanks. It
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
		return -1, fmt.Errorf("there are %d streams already", r.most)
	}
	if err := r.begin(); err != nil {
		return -1, err
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
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
	r.counts[fd] = true
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
	r.epoll, r.wake, r.all = epoll, wake, make(chan struct{})
	r.loop.Go(r.run)
	return nil
}

// wakeUp is epoll's word for the end of the loop.
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
	var events [64]unix.EpollEvent
	for timeout := -1; ; {
		n, err := unix.EpollWait(r.epoll, events[:], timeout)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return // internal error: the descriptor is no epoll any more
		}
		for _, e := range events[:max(n, 0)] {
			if e.Fd == wakeUp {
				return
			}
		}
		timeout = -1
		if r.round(events[:max(n, 0)]) {
			timeout = 0
			runtime.Gosched() // the step's own story goes on beside us
		}
	}
}

// stop ends the loop. It is called once, after begin.
func (r *Relay) stop() {
	one := [8]byte{1}
	_, _ = unix.Write(r.wake, one[:]) // an eventfd with room takes it
	r.loop.Wait()
	unix.Close(r.epoll)
	unix.Close(r.wake)
}

// round moves what is ready, and tells whether some streams want another turn.
func (r *Relay) round(events []unix.EpollEvent) (more bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		if i := int(e.Fd); i >= 0 && i < len(r.streams) && !r.streams[i].queued {
			r.streams[i].queued = true
			r.ready = append(r.ready, r.streams[i])
		}
	}
	left := r.ready[:0]
	for _, s := range r.ready {
		if s.queued = r.move(s); s.queued {
			left = append(left, s)
		}
	}
	r.ready = left
	return len(left) > 0
}

// move passes on what there is, for one turn, and tells whether there may be more.
// It is called with mu held.
func (r *Relay) move(s *stream) (more bool) {
	for range turn {
		if s.src < 0 {
			return false
		}
		if s.dst < 0 && r.tap == nil {
			r.end(s) // nobody reads
			return false
		}
		n, err := r.once(s)
		switch {
		case n > 0:
			r.passed[s.fd] += n
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EPIPE):
			unix.Close(s.dst)
			s.dst = -1
		case errors.Is(err, unix.EAGAIN):
			return r.ending && r.settle(s)
		default:
			r.end(s) // the end of file, or nothing that a pipe does
			return false
		}
	}
	return true
}

// once moves some bytes; none without an error is the end of file.
func (r *Relay) once(s *stream) (int64, error) {
	switch {
	case r.tap == nil:
		return unix.Splice(s.src, nil, s.dst, nil, moveMax, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
	case s.dst >= 0:
		// What the launcher has room for goes there first, and is heard then.
		n, err := unix.Tee(s.src, s.dst, tapMax, unix.SPLICE_F_NONBLOCK)
		if n <= 0 || err != nil {
			return n, err
		}
		return r.hear(s, int(n))
	}
	var st unix.PollFd
	st.Fd, st.Events = int32(s.src), unix.POLLIN
	if n, err := unix.Poll([]unix.PollFd{st}, 0); n == 0 || err != nil {
		return 0, errors.Join(err, unix.EAGAIN)
	}
	return r.hear(s, tapMax)
}

// hear takes at most n bytes, which are there, into memory and gives them to the tap.
func (r *Relay) hear(s *stream, n int) (int64, error) {
	got, err := 0, error(nil)
	for ok := true; ok; ok = errors.Is(err, unix.EINTR) {
		got, err = unix.Read(s.src, r.buf[:n])
	}
	if got > 0 {
		r.tap(s.fd, s.rank, r.buf[:got])
	}
	return int64(got), err
}

// settle ends a stream that nobody writes to any more, once the step ends: it lets the
// launcher's pipe take what is left, so that a launcher that is slow, or stopped, does
// not keep the step. It tells whether there is more to move.
func (r *Relay) settle(s *stream) (more bool) {
	p := []unix.PollFd{{Fd: int32(s.src), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, 0); n != 1 || err != nil || p[0].Revents&unix.POLLHUP == 0 {
		return false
	}
	if p[0].Revents&unix.POLLIN == 0 {
		r.end(s) // a full pipe behind it has kept splice(2) from saying so
		return false
	}
	if s.roomy || s.dst < 0 {
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

// end closes a stream. It is called with mu held.
func (r *Relay) end(s *stream) {
	for _, fd := range []int{s.src, s.dst} {
		if fd >= 0 {
			unix.Close(fd) // which takes it out of the epoll, too
		}
	}
	s.src, s.dst = -1, -1
	if r.tap != nil {
		r.tap(s.fd, s.rank, nil)
	}
	if r.open--; r.open == 0 && r.ending {
		close(r.all)
	}
}

// Used tells whether anything comes by here.
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
	for fd, to := range map[int]**int64{1: &rec.StdoutBytes, 2: &rec.StderrBytes} {
		if r.counts[fd] {
			n := r.passed[fd]
			*to = &n
		}
	}
}
