package pmi2

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
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
