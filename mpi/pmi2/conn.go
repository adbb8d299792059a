package pmi2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step/launch"
)

// conn is stepd's end of one rank's socketpair. Its rank's goroutine alone
// reads; anybody sends. A send never waits: what the socket does not take at
// once is queued, and a goroutine of its own writes it, so that a rank that
// does not read holds up only itself.
type conn struct {
	file *os.File
	raw  syscall.RawConn
	// queueMax bounds queued.
	queueMax int
	// flushers counts the goroutines that flush: the plugin waits for them.
	flushers *sync.WaitGroup

	mu       sync.Mutex
	queued   []byte // guarded by mu
	flushing bool   // guarded by mu: a goroutine owns queued
	broken   bool   // guarded by mu: nothing more is sent
	idle     *sync.Cond
}

// newPair makes a socketpair: our end for the poller, the rank's end as C
// programs expect it, blocking. Both are closed on exec; the host that forks
// the rank lets the rank's end through.
func newPair(queueMax int, flushers *sync.WaitGroup) (*conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		unix.Close(fds[0])
		unix.Close(fds[1])
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "pmi"), os.NewFile(uintptr(fds[1]), "pmi-rank")
	raw, err := ours.SyscallConn()
	if err != nil {
		ours.Close()
		theirs.Close()
		return nil, nil, err
	}
	c := &conn{file: ours, raw: raw, queueMax: queueMax, flushers: flushers}
	c.idle = sync.NewCond(&c.mu)
	return c, theirs, nil
}

// send writes data or queues it. It returns an error, once, when the queue
// would grow beyond its bound: the rank is cut off. A rank that is gone is no
// error: its reader finds out.
func (c *conn) send(data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken {
		return nil
	}
	if !c.flushing {
		// One attempt that cannot wait; it keeps the answers in order.
		n, err := c.tryWrite(data)
		if err != nil {
			c.breakOff()
			return nil
		}
		if data = data[n:]; len(data) == 0 {
			return nil
		}
	}
	if len(c.queued)+len(data) > c.queueMax {
		c.breakOff()
		return fmt.Errorf("%d bytes of answers are not read: more than %d (PMI2QueueBytes)", len(c.queued)+len(data), c.queueMax)
	}
	c.queued = append(c.queued, data...)
	if !c.flushing {
		c.flushing = true
		c.flushers.Go(c.flush)
	}
	return nil
}

// tryWrite writes what the socket takes without waiting.
func (c *conn) tryWrite(data []byte) (n int, err error) {
	rawErr := c.raw.Write(func(fd uintptr) bool {
		n, err = unix.Write(int(fd), data)
		return true // never wait for the socket here
	})
	if rawErr != nil {
		return 0, rawErr
	}
	if err == unix.EAGAIN || err == unix.EINTR {
		return 0, nil
	}
	return max(n, 0), err
}

// flush writes the queue, however slowly the rank reads, until it is empty or
// the connection is closed.
func (c *conn) flush() {
	for {
		c.mu.Lock()
		chunk := c.queued
		c.queued = nil
		if len(chunk) == 0 || c.broken {
			c.flushing = false
			c.idle.Broadcast()
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if _, err := c.file.Write(chunk); err != nil {
			c.shut()
		}
	}
}

// waitIdle waits until nothing is queued: a rank that does not read its
// answers is not read either.
func (c *conn) waitIdle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.flushing && !c.broken {
		c.idle.Wait()
	}
}

// shut ends both directions. Bytes that the rank had sent before can still be
// read, then the end of file (unix_stream_read_generic looks at the queue
// before the shutdown flag): an abort just before an exit is not lost.
func (c *conn) shut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breakOff()
}

// breakOff is shut for callers that hold mu.
func (c *conn) breakOff() {
	if c.broken {
		return
	}
	c.broken = true
	c.queued = nil
	c.idle.Broadcast()
	// An error means that file is closed already, which is what is wanted.
	_ = c.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

// close gives the descriptor back. Reads and writes that wait in it return.
func (c *conn) close() {
	c.shut()
	c.file.Close()
}

const (
	// firstBuffer is enough for what MPICH sends, and small enough that
	// thousands of ranks cost little.
	firstBuffer = 512
	// keptBuffer is the largest buffer that is kept once it is empty.
	keptBuffer = 4096
)

// reader cuts a rank's bytes into lines and frames. Its buffer grows only as
// bytes arrive, up to max and a header: a length field alone costs nothing.
type reader struct {
	src io.Reader
	buf []byte
	// buf[start:end] are bytes not yet used.
	start, end int
	max        int
}

// cutError says that a rank's bytes ended in the middle, or were too many.
type cutError struct{ text string }

func (e *cutError) Error() string { return e.text }

// line returns the next line without its newline; io.EOF at a clean end.
func (r *reader) line() (string, error) {
	for seen := 0; ; {
		i := bytes.IndexByte(r.buf[r.start+seen:r.end], '\n')
		if i >= 0 && seen+i <= r.max {
			return r.take(seen+i+1, 1), nil
		}
		seen = r.end - r.start
		if seen > r.max {
			return "", &cutError{fmt.Sprintf("cannot read PMI-1 line %s: longer than %d bytes (PMI2FrameBytes)", quote(r.rest()), r.max)}
		}
		if err := r.fill(); err != nil {
			return "", r.cut(err, "PMI-1 line")
		}
	}
}

// frame returns the next PMI-2 frame without its length field.
func (r *reader) frame() (string, error) {
	if err := r.need(headerBytes); err != nil {
		return "", r.cut(err, "PMI-2 frame length")
	}
	n, err := parseHeader(string(r.buf[r.start:r.start+headerBytes]), r.max)
	if err != nil {
		return "", err
	}
	if err := r.need(headerBytes + n); err != nil {
		return "", r.cut(err, "PMI-2 frame")
	}
	r.start += headerBytes
	return r.take(n, 0), nil
}

func (r *reader) need(n int) error {
	for r.end-r.start < n {
		if err := r.fill(); err != nil {
			return err
		}
	}
	return nil
}

// take copies n bytes out, less drop at their end, and lets a buffer go that
// one large frame had grown.
func (r *reader) take(n, drop int) string {
	s := string(r.buf[r.start : r.start+n-drop])
	r.start += n
	if r.start == r.end {
		r.start, r.end = 0, 0
		if len(r.buf) > keptBuffer {
			r.buf = nil
		}
	}
	return s
}

// fill reads once, after it made room.
func (r *reader) fill() error {
	if r.end == len(r.buf) {
		if r.start > 0 {
			r.end = copy(r.buf, r.buf[r.start:r.end])
			r.start = 0
		} else {
			grown := make([]byte, max(firstBuffer, 2*len(r.buf)))
			copy(grown, r.buf)
			r.buf = grown
		}
	}
	n, err := r.src.Read(r.buf[r.end:])
	r.end += n
	if n > 0 {
		return nil
	}
	return err
}

// cut distinguishes a clean end from one in the middle of a message.
func (r *reader) cut(err error, what string) error {
	if err == io.EOF && r.end > r.start {
		return &cutError{fmt.Sprintf("cannot read %s: cut after %d bytes: %s", what, r.end-r.start, quote(r.rest()))}
	}
	return err
}

func (r *reader) rest() string { return string(r.buf[r.start:r.end]) }

// logsPerRank bounds the lines that one rank can make stepd log.
const logsPerRank = 8

// serve is a rank's goroutine: it answers until the rank's end of the socket
// is closed, then waits for the task's end, and judges it.
func (p *Plugin) serve(r *rank) {
	defer r.conn.close()
	err := p.talk(r)
	r.conn.shut()
	if r.spawning != nil {
		p.state.release(r.spawning)
		r.spawning = nil
	}
	if err != nil && !p.isClosing() {
		p.log(r, "connection closed: "+err.Error())
	}
	timer := time.After(p.conf.CloseGrace)
	for {
		select {
		case <-p.closing:
			return
		case <-r.exited:
			p.settle(p.state.ended(r, r.exitedAs))
			return
		case <-timer:
			// The task closed its end and lives on: no status will say why.
			p.settle(p.state.hungUp(r))
		}
	}
}

// talk reads the first line, which decides the protocol, and goes on in it.
// It returns nil where the rank's bytes ended cleanly.
func (p *Plugin) talk(r *rank) error {
	in := &reader{src: r.conn.file, max: p.conf.FrameBytes}
	err := p.greet(r, in)
	switch {
	case err == io.EOF:
		return nil
	case errors.Is(err, syscall.ECONNRESET) || errors.Is(err, os.ErrClosed):
		// Reset: the task ended with answers unread.
		return nil
	}
	return err
}

func (p *Plugin) greet(r *rank, in *reader) error {
	text, err := in.line()
	if err != nil {
		return err
	}
	m, err := parseLine(text, p.conf.Attributes)
	if err != nil {
		return err
	}
	if m.cmd != "init" || m.multi {
		return fmt.Errorf("cannot begin with PMI command %s: want cmd=init", quote(m.cmd))
	}
	switch version, _ := m.number("pmi_version"); version {
	case 1:
		r.speaks = 1
		if err := p.command1(r, m); err != nil {
			return err
		}
		return p.serve1(r, in)
	case 2:
		r.speaks = 2
		p.settle(p.state.advance(r, phaseHello))
		p.send(r, line1("response_to_init", pair{"pmi_version", "2"}, pair{"pmi_subversion", "0"}, pair{"rc", "0"}))
		return p.serve2(r, in)
	}
	p.send(r, line1("response_to_init", pair{"pmi_version", "2"}, pair{"pmi_subversion", "0"}, pair{"rc", "-1"}))
	text, _ = m.get("pmi_version")
	return fmt.Errorf("cannot speak PMI version %s: want 1 or 2", quote(text))
}

// answerAll reads a rank's messages and carries them out, until its end; a message that
// cannot be read and names its command is refused. The error says why the rank was cut
// off; io.EOF is a clean end.
func (p *Plugin) answerAll(r *rank, read func() (message, error), command func(*rank, message) error, refused func(message, *refusal) []byte) error {
	for {
		r.conn.waitIdle()
		m, err := read()
		switch {
		case err != nil && m.cmd == "":
			return err
		case err != nil:
			p.log(r, err.Error())
			p.send(r, refused(m, refuse(codeArgument, "%v", err)))
		default:
			if err := command(r, m); err != nil {
				return err
			}
		}
	}
}

// settle sends what an outcome holds, and ends the step if it says so. The
// state's lock is free: Abort may be slow.
func (p *Plugin) settle(out outcome) {
	for _, d := range out.deliveries {
		p.send(d.to, d.data)
	}
	if out.share != nil {
		p.running.Go(func() { p.exchange(out.share) })
	}
	if out.watch != nil {
		p.running.Go(func() { p.watch(out.watch) })
	}
	if out.abort != nil && !p.isClosing() {
		p.job.Abort(out.abort.rank, out.abort.code, out.abort.text)
	}
}

// watch looks at the clock while the ranks of this node come to a fence.
func (p *Plugin) watch(w *watch) {
	select {
	case <-w.whole:
	case <-p.closing:
	case <-time.After(p.conf.FenceTimeout):
		p.settle(p.state.late(w.seq, p.conf.FenceTimeout))
	}
}

func (p *Plugin) send(r *rank, data []byte) {
	if err := r.conn.send(data); err != nil {
		p.log(r, "connection closed: "+err.Error())
	}
}

// log writes a line about a rank, unless the rank had its share.
func (p *Plugin) log(r *rank, text string) {
	p.state.mu.Lock()
	r.logged++
	share := r.logged
	p.state.mu.Unlock()
	switch {
	case share > logsPerRank:
		return
	case share == logsPerRank:
		text += " (further messages of this rank are dropped)"
	}
	p.job.Log(fmt.Sprintf("mpi/pmi2: rank %d: %s", r.n, text))
}

func (p *Plugin) isClosing() bool {
	select {
	case <-p.closing:
		return true
	default:
		return false
	}
}

// later answers a request by do, which may ask noded, while the rank's other
// requests go on. do's context ends with the rank and with the plugin.
func (p *Plugin) later(r *rank, do func(ctx context.Context) []byte) *refusal {
	if p.job.Job == nil {
		return refuse(codeOther, "there is no noded to ask")
	}
	if why := p.state.countAsk(r, 1); why != nil {
		return why
	}
	p.running.Go(func() {
		ctx, cancel := context.WithCancel(p.ctx)
		defer cancel()
		stop := make(chan struct{})
		defer close(stop)
		p.running.Go(func() {
			select {
			case <-r.exited:
				cancel()
			case <-stop:
			}
		})
		answer := do(ctx)
		p.state.countAsk(r, -1)
		p.send(r, answer)
	})
	return nil
}

// countAsk counts a request that is answered later, by 1, and its end, by -1.
func (s *state) countAsk(r *rank, by int) *refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by > 0 && r.asks >= s.conf.WaitsPerRank {
		return refuse(codeNoMemory, "rank %d waits for %d answers of noded: the limit (PMI2WaitsPerRank)", r.n, r.asks)
	}
	r.asks += by
	return nil
}

// publish binds a service name to a port for all steps of the job.
func (p *Plugin) publish(ctx context.Context, version int, name, port string) *refusal {
	if why := p.state.check(version, name, port); why != nil {
		return why
	}
	return refusalOf(p.job.Job.Publish(ctx, name, port))
}

// unpublish removes a service name; any rank of the job may.
func (p *Plugin) unpublish(ctx context.Context, name string) *refusal {
	return refusalOf(p.job.Job.Unpublish(ctx, name))
}

// resolve finds a service's port.
func (p *Plugin) resolve(ctx context.Context, name string) (string, *refusal) {
	port, found, err := p.job.Job.Lookup(ctx, name)
	if err != nil {
		return "", refusalOf(err)
	}
	if !found {
		return "", refuse(codeArgument, "service %s is not published", quote(name))
	}
	return port, nil
}

// refusalOf is noded's word for a rank; nil of nil.
func refusalOf(err error) *refusal {
	if err == nil {
		return nil
	}
	return &refusal{codeOther, err.Error()}
}

// spawn starts another step of the job, and returns its id.
func (p *Plugin) spawn(ctx context.Context, r *rank, s *spawnRequest) (id string, errs []int, why *refusal) {
	made, err := p.job.Job.Spawn(ctx, launch.SpawnRequest{Rank: r.n, Apps: s.apps, Preput: s.preput, MPI: Name})
	if err == nil {
		return made.Key(), make([]int, s.ntasks()), nil
	}
	errs = make([]int, s.ntasks())
	failed, some := errors.AsType[*launch.SpawnError](err)
	for i := range errs {
		if some && len(failed.Failed) > 0 && failed.Failed[i] == "" {
			continue
		}
		errs[i] = codeOther
	}
	p.log(r, fmt.Sprintf("spawn: %v", err))
	return "", errs, refusalOf(err)
}
