package stepio

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// Options are what the user asked of the streams, and the client's own files.
type Options struct {
	Stdin, Stdout, Stderr *os.File
	// Of gives the file that the labelled output of a rank goes to; nil: Stdout, Stderr.
	Of func(fd, rank int) *os.File
	// Unbuffered passes bytes on as they come, not by whole lines.
	Unbuffered bool
	// Label puts the rank before each line.
	Label bool
	// SameUser says that the tasks run as the client's own user.
	SameUser bool
	// Writing hears, by any goroutine, what is about to be written to a terminal. nil hears
	// nothing.
	Writing func(b []byte)
	// Failed hears, by any goroutine and once for each stream, that a file does not
	// take what the tasks write, or cannot be read: tasks that write on get SIGPIPE,
	// and readers have their end of file. With nil it is not reported. err is a
	// *StreamError.
	Failed func(err error)
}

// failed says why a stream ends before its time.
func (o *Options) failed(fd int, file *os.File, err error) {
	if err == nil || o.Failed == nil {
		return
	}
	verb := "write"
	if fd == 0 {
		verb = "read"
	}
	if path, ok := errors.AsType[*os.PathError](err); ok {
		err = path.Err
	}
	o.Failed(fmt.Errorf("cannot %s %s %q: %w", verb, streamNames[fd], file.Name(), err))
}

// writingTo is Writing for what f gets.
func (o *Options) writingTo(f *os.File) func(b []byte) {
	if o.Writing == nil || !isTerminal(f) {
		return func([]byte) {}
	}
	return o.Writing
}

var streamNames = [3]string{"stdin", "stdout", "stderr"}

// Session is the streams of one step. Make it with Open, hand it over with
// Attach, and wait for the last byte with Drain.
type Session struct {
	opt    Options
	spec   *step.Spec
	handed []handed
	start  []func() // the relays, begun when the tasks have their ends
	relays sync.WaitGroup
}

// handed is one descriptor for stepd.
type handed struct {
	stream stepapi.StreamFD
	file   *os.File
	ours   bool // the client keeps it
}

// Open makes what the tasks' streams need. The caller ends it with Drain or
// Close.
func Open(spec *step.Spec, opt Options) (*Session, error) {
	s := &Session{opt: opt, spec: spec}
	err := s.openInput()
	for _, out := range []struct {
		fd     int
		stream step.Stream
		file   *os.File
	}{{1, spec.Stdout, opt.Stdout}, {2, spec.Stderr, opt.Stderr}} {
		if err == nil && out.stream.Kind == step.StreamClient {
			err = s.openOutput(out.fd, out.stream, out.file)
		}
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("cannot make the tasks' streams: %w", err)
	}
	return s, nil
}

// ranksOf are the ranks that have the stream.
func (s *Session) ranksOf(st step.Stream) []int {
	if st.Rank != nil {
		return []int{*st.Rank}
	}
	ranks := make([]int, s.spec.NTasks)
	for i := range ranks {
		ranks[i] = i
	}
	return ranks
}

func (s *Session) openInput() error {
	if s.spec.Stdin.Kind != step.StreamClient {
		return nil
	}
	ranks := s.ranksOf(s.spec.Stdin)
	widenOwn(s.opt.Stdin)
	if len(ranks) == 1 && Handable(s.opt.Stdin, s.opt.SameUser) {
		s.hand(0, ranks[0], s.opt.Stdin, true)
		return nil
	}
	var writers []*os.File
	for _, rank := range ranks {
		ours, theirs, err := s.pipe(true)
		if err != nil {
			return err
		}
		writers = append(writers, ours)
		s.hand(0, rank, theirs, false)
	}
	// Not waited for: it may be blocked in a read of the terminal when the
	// step ends.
	s.start = append(s.start, func() {
		go func() { s.opt.failed(0, s.opt.Stdin, broadcast(inForeground(s.opt.Stdin), writers)) }()
	})
	return nil
}

func (s *Session) openOutput(fd int, st step.Stream, dest *os.File) error {
	ranks, rank := s.ranksOf(st), launch.AllRanks
	if st.Rank != nil {
		rank = *st.Rank
	}
	if fd == 1 {
		widenOwn(dest)
	}
	// Several ranks that write to one pipe cut each other's lines at every
	// buffer's end: what reads it gets whole ones unless -u is given. A regular
	// file is handed over in any case: it is the kernel's to order.
	if !s.opt.Label && (len(ranks) == 1 || s.opt.Unbuffered || isRegular(dest)) && Handable(dest, s.opt.SameUser) {
		s.hand(fd, rank, dest, true)
		return nil
	}
	if !s.opt.Label && (len(ranks) == 1 || s.opt.Unbuffered) {
		if isPipe(dest) { // of another user's tasks: stepd passes on to it, and they never have it
			s.handed = append(s.handed, handed{stepapi.StreamFD{FD: fd, Rank: rank, Relay: true}, dest, true})
			return nil
		}
		ours, theirs, err := s.pipe(false)
		if err != nil {
			return err
		}
		s.hand(fd, rank, theirs, false)
		widen(ours, 1)
		s.relay(func() {
			s.opt.failed(fd, dest, s.opt.pass(dest, ours))
		})
		return nil
	}
	outs := newOutputs(fd, dest, s.spec.NTasks, &s.opt)
	g, err := newGather()
	if err != nil {
		return err
	}
	for _, rank := range ranks {
		ours, theirs, err := s.pipe(false)
		if err != nil {
			g.close()
			return err
		}
		widen(ours, len(ranks))
		s.hand(fd, rank, theirs, false)
		if err := g.add(rank, ours, outs.of(rank)); err != nil {
			g.close()
			return err
		}
	}
	s.relay(g.run)
	return nil
}

const (
	// pipeMax is what the pipe of a stream holds at the most, pipesMax what all of
	// them hold: a quarter of what a user's pipes may (pipe(7),
	// pipe-user-pages-soft).
	pipeMax  = 256 << 10
	pipesMax = 16 << 20
)

// widen lets a pipe that is read here hold more than the kernel's 64 KiB, so that who
// writes and who reads take turns less often. Where it may not, it stays as it is.
func widen(pipe *os.File, ranks int) {
	if size := min(pipeMax, pipesMax/(2*ranks)); size > pipeMax/4 {
		_, _ = unix.FcntlInt(uintptr(rawFD(pipe)), unix.F_SETPIPE_SZ, size)
	}
}

// widenOwn does so with a pipe that the client was started with, for stdin or stdout:
// the process at its other end takes turns with the tasks, or with us. One that is wider
// already stays so.
func widenOwn(f *os.File) {
	if !isPipe(f) {
		return
	}
	_ = linux.OnFD(f, func(fd int) error {
		size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
		if err == nil && size < pipeMax {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, pipeMax)
		}
		return err // it stays as it is
	})
}

// Copies reports whether this process copies bytes of a stream, which Attach begins.
func (s *Session) Copies() bool { return len(s.start) > 0 }

func (s *Session) relay(copy func()) {
	s.start = append(s.start, func() { s.relays.Go(copy) })
}

// hand notes a descriptor for stepd: the client's own, or a pipe's end that it made.
func (s *Session) hand(fd, rank int, f *os.File, ours bool) {
	s.handed = append(s.handed, handed{stepapi.StreamFD{FD: fd, Rank: rank, Relay: !ours && fd != 0}, f, ours})
}

func (s *Session) pipe(taskReads bool) (ours, theirs *os.File, err error) {
	uid := -1
	if !s.opt.SameUser && os.Geteuid() == 0 {
		uid = int(s.spec.User.UID)
	}
	return Pipe(uid, taskReads)
}

// Pipe makes a pipe for a task, which reads it or writes to it. The task's end
// belongs to the user uid (-1: to the caller's), so that the task may open
// /dev/stdout again, and blocks, as programs expect: os.Pipe's ends do not.
func Pipe(uid int, taskReads bool) (ours, theirs *os.File, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	mine, other := p[0], p[1]
	if taskReads {
		mine, other = p[1], p[0]
	}
	// Ours is for the runtime's poller: a thread for each rank would be too much.
	if err := unix.SetNonblock(mine, true); err != nil {
		unix.Close(mine)
		unix.Close(other)
		return nil, nil, err
	}
	ours, theirs = os.NewFile(uintptr(mine), "pipe"), os.NewFile(uintptr(other), "task's pipe")
	if uid >= 0 {
		if err := unix.Fchown(other, uid, -1); err != nil {
			ours.Close()
			theirs.Close()
			return nil, nil, err
		}
	}
	return ours, theirs, nil
}

// Attach hands the descriptors to stepd, says that these are all, and begins
// to relay.
func (s *Session) Attach(c *stepapi.Conn) error {
	for rest := s.handed; len(rest) > 0; {
		n := min(len(rest), stepapi.FDsMax)
		m := &stepapi.Msg{Type: stepapi.TypeAttach}
		var fds []int
		for _, h := range rest[:n] {
			m.Streams = append(m.Streams, h.stream)
			fds = append(fds, rawFD(h.file))
		}
		if err := c.Send(m, fds...); err != nil {
			return err
		}
		rest = rest[n:]
	}
	// Our copies would keep the tasks' pipes open.
	s.closeHanded()
	for _, start := range s.start {
		start()
	}
	return c.Send(&stepapi.Msg{Type: stepapi.TypeAttachDone})
}

func (s *Session) closeHanded() {
	for _, h := range s.handed {
		if !h.ours {
			h.file.Close()
		}
	}
	s.handed = nil
}

// Close gives up a session that was not attached.
func (s *Session) Close() { s.closeHanded() }

// Drain waits for the last byte of the tasks' output. When it does not come
// within limit it returns false: a process holds a stream open.
func (s *Session) Drain(limit time.Duration) bool {
	done := make(chan struct{})
	go func() { s.relays.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// rawFD is the descriptor of f without os.File.Fd's side effect: that sets
// blocking mode on a file that others may share.
func rawFD(f *os.File) int {
	fd := -1
	_ = linux.OnFD(f, func(n int) error { fd = n; return nil }) // -1 of one that is closed
	return fd
}

// Handable reports whether f may be given to the tasks: a regular file or a pipe,
// and the tasks are of the same user. A terminal or a socket is
// relayed, so that no task can control the client's terminal.
func Handable(f *os.File, sameUser bool) bool {
	kind := kindOf(f)
	return sameUser && (kind == unix.S_IFREG || kind == unix.S_IFIFO)
}

// kindOf is the kind of file that f is (S_IFMT), 0 of one that is not open.
func kindOf(f *os.File) uint32 {
	var st unix.Stat_t
	if f == nil || unix.Fstat(rawFD(f), &st) != nil {
		return 0
	}
	return st.Mode & unix.S_IFMT
}

func isPipe(f *os.File) bool { return kindOf(f) == unix.S_IFIFO }

// IsNull reports whether f is /dev/null, or is not open at all.
func IsNull(f *os.File) bool {
	var st unix.Stat_t
	if f == nil || unix.Fstat(rawFD(f), &st) != nil {
		return true
	}
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(rawFD(f), unix.TCGETS)
	return err == nil
}

func isRegular(f *os.File) bool { return kindOf(f) == unix.S_IFREG }

// TakeFD takes the descriptor out of f, which is then closed: it is the
// caller's to close.
func TakeFD(f *os.File) (int, error) {
	defer f.Close()
	return unix.FcntlInt(uintptr(rawFD(f)), unix.F_DUPFD_CLOEXEC, 3)
}

// moveMax is the most that the kernel is asked to move at once.
const moveMax = 1 << 20

// pass passes on everything from a pipe to the client's file until its end, as it
// comes. The kernel moves it, where it can for this kind of file and does not wait for it
// with the pipe held. What the file does
// not take is an error, and the rest is not read: the tasks get SIGPIPE. It takes a
// thread, which waits in the kernel: through the runtime's poller each of the pipes'
// turns takes longer.
func (o *Options) pass(dest, src *os.File) error {
	in, err := TakeFD(src)
	if err != nil {
		return err
	}
	defer unix.Close(in)
	if err := unix.SetNonblock(in, false); err != nil {
		return err
	}
	_ = linux.BatchThread() // without it the bytes only take longer
	out := rawFD(dest)
	writing := o.writingTo(dest)
	var buf []byte // where the kernel cannot, or is not to
	if !spliced(out) {
		buf = make([]byte, bufferSize)
	}
	for {
		var n int64
		if buf != nil {
			n, err = copySome(out, in, buf, writing)
		} else {
			n, err = unix.Splice(in, nil, out, nil, moveMax, unix.SPLICE_F_MOVE)
		}
		switch {
		case errors.Is(err, unix.EINVAL) && buf == nil:
			buf = make([]byte, bufferSize) // one that is open for appending
		case errors.Is(err, unix.EAGAIN): // another process that shares the file does not want it to block
			ready(out, unix.POLLOUT, -1)
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return nil
		}
	}
}

// spliced reports whether the kernel may move a pipe's bytes to a descriptor. While it
// waits for a terminal (whose user has typed ^S) or a socket it holds the pipe, and a
// writer to that pipe hangs where no signal reaches it: the task, or the step's stepd.
// Some drivers do not wait for an empty pipe, either.
func spliced(fd int) bool {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFIFO:
		return true
	case unix.S_IFCHR:
		return st.Rdev == unix.Mkdev(1, 3) // /dev/null
	}
	return false
}

func copySome(out, in int, buf []byte, writing func([]byte)) (int64, error) {
	n, err := unix.Read(in, buf)
	if n <= 0 {
		return 0, err
	}
	writing(buf[:n])
	return int64(n), writeAll(out, buf[:n])
}

// ready waits at most ms milliseconds (-1: for ever) for events of a descriptor.
func ready(fd int, events int16, ms int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, ms)
	return n == 1 && err == nil
}

// writeAll writes all of the pieces, of which the first may be empty.
func writeAll(fd int, pieces ...[]byte) error {
	for len(pieces) > 0 {
		if len(pieces[0]) == 0 {
			pieces = pieces[1:]
			continue
		}
		var n int
		var err error
		if len(pieces) == 1 {
			n, err = unix.Write(fd, pieces[0])
		} else {
			n, err = unix.Writev(fd, pieces)
		}
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN): // another process that shares it does not want it to block
			ready(fd, unix.POLLOUT, -1)
		case err != nil:
			return err
		}
		for n = max(n, 0); n > 0; pieces = pieces[1:] {
			if n < len(pieces[0]) {
				pieces[0] = pieces[0][n:]
				break
			}
			n -= len(pieces[0])
		}
	}
	return nil
}

const (
	// inputChunks bounds what is read ahead for a rank that reads more slowly than
	// the others.
	inputChunks = 16
	// inputSize is what is read at once: what a rank's pipe holds.
	inputSize = 64 << 10
)

// chunk is a piece of input that several ranks are to read.
type chunk struct {
	data    []byte
	readers atomic.Int32 // that have not got it yet
	buf     *[inputSize]byte
}

var chunks = sync.Pool{New: func() any { return new([inputSize]byte) }}

func (c *chunk) done() {
	if c.readers.Add(-1) == 0 {
		chunks.Put(c.buf)
	}
}

// feed is one rank's input.
type feed struct {
	chunks chan *chunk
	gone   chan struct{} // closed when it reads no more
}

// run writes what comes to the rank's pipe, until its end or the rank's.
func (f *feed) run(w *os.File) {
	defer w.Close()
	defer close(f.gone)
	for c := range f.chunks {
		_, err := w.Write(c.data)
		c.done()
		if err != nil {
			return
		}
	}
}

// broadcast sends src to every writer. A rank that has closed its input, or has
// ended, drops out; one that does not read holds the others back. It returns when src
// has ended, or when no reader is left, and what was wrong with src.
func broadcast(src io.Reader, writers []*os.File) error {
	feeds := make([]*feed, len(writers))
	for i, w := range writers {
		feeds[i] = &feed{make(chan *chunk, inputChunks), make(chan struct{})}
		go feeds[i].run(w)
	}
	defer func() {
		for _, f := range feeds {
			close(f.chunks)
		}
	}()
	for len(feeds) > 0 {
		c := &chunk{buf: chunks.Get().(*[inputSize]byte)}
		n, err := src.Read(c.buf[:])
		c.data = c.buf[:n]
		c.readers.Store(int32(len(feeds)))
		left := feeds[:0]
		for _, f := range feeds {
			select {
			case f.chunks <- c:
				left = append(left, f)
			case <-f.gone:
				c.done()
				close(f.chunks)
			}
		}
		feeds = left
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
