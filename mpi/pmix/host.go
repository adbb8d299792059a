package pmix

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/wire"
	"stepd/step"
)

// host is one running pmixhost. Its methods may be called from any goroutine.
type host struct {
	conn   net.Conn
	pid    int
	pidfd  int
	stderr *os.File        // we read it
	ended  chan struct{}   // closed when the process was reaped
	status step.ExitStatus // how, then

	mu    sync.Mutex
	next  uint32                 // guarded by mu: the last command's number
	calls map[uint32]chan answer // guarded by mu: commands that wait for their DONE
	queue [][]byte               // guarded by mu: frames that wait for the writer
	owed  int                    // guarded by mu: bytes that pmixhost has not taken yet
	wake  chan struct{}          // size 1: the queue has something, or is to end
	gone  bool                   // guarded by mu: nothing is sent or waited for any more

	running sync.WaitGroup // reader and writer
}

// answer is a DONE.
type answer struct {
	r   reader
	err error
}

// frame is what pmixhost says unasked.
type frame struct {
	typ, id uint32
	body    reader
	size    int
}

// errGone says that pmixhost has ended, or its channel.
var errGone = errors.New("pmixhost is gone")

// startHost runs the program, and hears it from now on: frame is called by one
// goroutine, for each frame that is no DONE, and must not block; ended is called
// once, by the same, when nothing more will come. said is called for each line that the
// process writes to its standard error.
func startHost(cfg *Config, title string, heard func(frame), ended func(error), said func(string)) (*host, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make the socket pair of pmixhost: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "pmixhost's channel")
	defer theirs.Close()
	ours := os.NewFile(uintptr(fds[0]), "pmixhost")
	conn, err := net.FileConn(ours)
	ours.Close() // FileConn has its own
	if err != nil {
		return nil, fmt.Errorf("cannot use the socket pair of pmixhost: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot make the pipe of pmixhost's standard error: %w", err)
	}
	defer write.Close()
	h := newHost(conn)
	if err := h.run(cfg, title, theirs, write); err != nil {
		read.Close()
		conn.Close()
		return nil, err
	}
	h.stderr = read
	h.running.Go(func() { listen(read, said) })
	h.serve(heard, ended)
	return h, nil
}

func newHost(conn net.Conn) *host {
	return &host{
		conn: conn, pidfd: -1, ended: make(chan struct{}),
		calls: make(map[uint32]chan answer), wake: make(chan struct{}, 1),
	}
}

// lineMax bounds a line of pmixhost's standard error.
const lineMax = 1024

// listen passes lines on until no process holds the pipe. It is read to its end: the
// library's words must not hold up the library.
func listen(read *os.File, said func(string)) {
	in := bufio.NewReaderSize(read, lineMax)
	for {
		line, err := in.ReadSlice('\n')
		if text := strings.TrimSpace(string(line)); text != "" {
			said(text)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// lastWords is how long the standard error of a dead pmixhost is read: a process
// that it has started may hold it open.
const lastWords = 200 * time.Millisecond

// run starts the process with nothing of ours but its channel, a pipe for its
// standard error, which is not our log, since it runs as the user, and the
// namespace that it is to join.
func (h *host) run(cfg *Config, title string, channel, stderr *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{
		Dir: "/", Env: []string{},
		Files: []uintptr{null.Fd(), null.Fd(), stderr.Fd(), pmixhostFDControl: channel.Fd()},
		// A session of its own: no terminal's signals, none of a task's group.
		Sys: &syscall.SysProcAttr{Setsid: true, PidFD: &h.pidfd},
	}
	if cfg.Namespace != nil {
		attr.Files = append(attr.Files, cfg.Namespace.Fd())
	}
	pid, exited, err := cfg.Start(cfg.Program, []string{title}, attr)
	if err != nil {
		return err
	}
	h.pid = pid
	h.running.Go(func() {
		e := <-exited
		h.status = step.ExitStatus(e.Status)
		close(h.ended)
	})
	return nil
}

// serve moves frames until the channel ends.
func (h *host) serve(heard func(frame), ended func(error)) {
	h.running.Go(h.write)
	h.running.Go(func() {
		err := h.read(heard)
		h.end()
		ended(err)
	})
}

// read shares out what comes. Frames come one after the other, so that one at a
// time can be long.
func (h *host) read(heard func(frame)) error {
	in := bufio.NewReaderSize(h.conn, 16<<10)
	for {
		f, err := readFrame(in)
		if err != nil {
			return err
		}
		if f.typ != repDone {
			heard(f)
			continue
		}
		a := answer{r: f.body}
		a.err = doneError(&a.r)
		h.mu.Lock()
		waiting := h.calls[f.id]
		delete(h.calls, f.id)
		h.mu.Unlock()
		if waiting == nil {
			return fmt.Errorf("it answered command %d, which was not given", f.id)
		}
		waiting <- a // size 1
	}
}

// readFrame reads one frame. Room is made as its bytes come, so that a length
// alone costs nothing.
func readFrame(in *bufio.Reader) (frame, error) {
	var head [12]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return frame{}, err
	}
	size := binary.LittleEndian.Uint32(head[:])
	if size < 8 || size > pmixhostFrameMax {
		return frame{}, fmt.Errorf("it sent a frame of %d bytes: the limit is %d", size, pmixhostFrameMax)
	}
	left := int(size) - 8
	var body []byte
	for left > 0 {
		n := min(left, max(64<<10, len(body)))
		at := len(body)
		body = append(body, make([]byte, n)...)
		if _, err := io.ReadFull(in, body[at:]); err != nil {
			return frame{}, err
		}
		left -= n
	}
	return frame{
		typ: binary.LittleEndian.Uint32(head[4:]), id: binary.LittleEndian.Uint32(head[8:]),
		body: reader{Reader: wire.Reader{B: body}}, size: int(size),
	}, nil
}

// statusError is a status of the library's that is no success.
type statusError struct {
	status int
	what   string
}

// errnoBase: below it, a status is a system call's error (REP_DONE).
const errnoBase = -1000000

func (e *statusError) Error() string {
	if e.status <= errnoBase {
		return fmt.Sprintf("%s: %v", e.what, syscall.Errno(errnoBase-e.status))
	}
	return fmt.Sprintf("%s: %s", e.what, statusText(e.status))
}

func doneError(r *reader) error {
	status, what := r.i32(), r.str()
	if r.Err != nil {
		return fmt.Errorf("cannot read pmixhost's answer: %w", r.Err)
	}
	if status != stSuccess {
		return &statusError{status, what}
	}
	return nil
}

// write sends what is queued, so that no sender waits for pmixhost.
func (h *host) write() {
	for range h.wake {
		h.mu.Lock()
		frames, gone := h.queue, h.gone
		h.queue = nil
		h.mu.Unlock()
		if gone {
			return
		}
		bufs := net.Buffers(frames)
		n, err := bufs.WriteTo(h.conn)
		if err != nil {
			return // the reader sees the end
		}
		h.mu.Lock()
		h.owed -= int(n)
		h.mu.Unlock()
	}
}

// owedMax bounds what waits for pmixhost: two of the longest frames.
const owedMax = 2 * pmixhostFrameMax

// send queues a frame. A pmixhost that asks and does not read is ended.
func (h *host) send(typ, id uint32, fill func(w *writer)) error {
	w := &writer{Writer: wire.Writer{B: make([]byte, 12, 256)}}
	fill(w)
	if len(w.B)-4 > pmixhostFrameMax {
		return fmt.Errorf("cannot send %d bytes to pmixhost: the limit is %d", len(w.B), pmixhostFrameMax)
	}
	binary.LittleEndian.PutUint32(w.B, uint32(len(w.B)-4))
	binary.LittleEndian.PutUint32(w.B[4:], typ)
	binary.LittleEndian.PutUint32(w.B[8:], id)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return errGone
	}
	if len(w.B) > owedMax-h.owed {
		h.kill()
		return fmt.Errorf("cannot send %d bytes to pmixhost: it has not read %d, and %d is the limit", len(w.B), h.owed, owedMax)
	}
	h.queue = append(h.queue, w.B)
	h.owed += len(w.B)
	h.nudge()
	return nil
}

func (h *host) nudge() {
	select {
	case h.wake <- struct{}{}:
	default: // the writer is to look anyway
	}
}

// call gives a command and returns where its answer will come, once.
func (h *host) call(typ uint32, fill func(w *writer)) (<-chan answer, error) {
	waiting := make(chan answer, 1)
	h.mu.Lock()
	h.next++
	id := h.next
	if h.gone {
		h.mu.Unlock()
		return nil, errGone
	}
	h.calls[id] = waiting
	h.mu.Unlock()
	if err := h.send(typ, id, fill); err != nil {
		h.mu.Lock()
		delete(h.calls, id)
		h.mu.Unlock()
		return nil, err
	}
	return waiting, nil
}

// end ends every wait.
func (h *host) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return
	}
	h.gone = true
	for id, waiting := range h.calls {
		delete(h.calls, id)
		waiting <- answer{err: errGone} // size 1
	}
	h.queue = nil
	h.nudge()
}

// kill ends the process at once; it is idempotent.
func (h *host) kill() {
	if h.pidfd >= 0 {
		unix.PidfdSendSignal(h.pidfd, unix.SIGKILL, nil, 0)
	}
}

// close ends pmixhost and waits for its end. It is called once.
func (h *host) close() {
	h.end()
	h.conn.Close()
	h.kill() // it may be busy, and nothing of it is needed any more
	if h.stderr != nil {
		select {
		case <-h.ended:
		case <-time.After(lastWords): // it does not die: so it says nothing, either
		}
		_ = h.stderr.SetReadDeadline(time.Now().Add(lastWords))
		defer h.stderr.Close()
	}
	h.running.Wait()
	if h.pidfd >= 0 {
		unix.Close(h.pidfd)
	}
}
