package peers

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A channel is a wire of mails, for two nodes whose ports are closed to each other: slurmd carries
// each piece, and says when it is in the other's mailbox.
type channel struct {
	id   uint64
	send func(ctx context.Context, m *mail) error

	ctx    context.Context // ends with Close
	cancel context.CancelFunc

	mu     sync.Mutex
	change chan struct{}     // guarded by mu: closed at each change of what follows
	read   uint64            // guarded by mu: bytes that the other end has read of ours
	queue  [][]byte          // guarded by mu: pieces to be read
	early  map[uint64][]byte // guarded by mu: those that came before their turn
	next   uint64            // guarded by mu: the number of the piece that is to come
	last   *uint64           // guarded by mu: how many pieces there are, once the other end writes no more
	closed bool              // guarded by mu
	held   int               // guarded by mu: bytes in queue and early

	pieces      atomic.Uint64 // that were sent
	written     uint64        // the writer's: bytes that were sent
	taken, told uint64        // the reader's: bytes that were read, and of which the other end knows
}

const (
	// channelWindow bounds what is on its way in one direction.
	channelWindow = 4 << 20
	// sendPause is the time before a piece is sent again, twice as long each time up to
	// sendPauseMax.
	sendPause, sendPauseMax = 20 * time.Millisecond, 2 * time.Second
)

func newChannel(ctx context.Context, id uint64, send func(context.Context, *mail) error) *channel {
	c := &channel{id: id, send: send, change: make(chan struct{}), early: make(map[uint64][]byte)}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// changed wakes who waits. The caller holds mu.
func (c *channel) changed() {
	close(c.change)
	c.change = make(chan struct{})
}

var errChannel = errors.New("the channel breaks its rules")

// take takes a mail of the other end. A piece that came before is left out: its sender was not
// told that it had come.
func (c *channel) take(m *mail) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.changed()
	switch m.kind {
	case kindRead:
		c.read = max(c.read, m.number)
	case kindEnd:
		c.last = &m.number
	case kindData:
		_, twice := c.early[m.number]
		if m.number < c.next || twice || c.closed {
			return nil
		}
		if len(m.data) == 0 || c.held+len(m.data) > channelWindow+mailMax {
			return errChannel
		}
		c.held += len(m.data)
		c.early[m.number] = m.data
		for p := c.early[c.next]; p != nil; p = c.early[c.next] {
			c.queue = append(c.queue, p)
			delete(c.early, c.next)
			c.next++
		}
	}
	return nil
}

// Read implements io.Reader.
func (c *channel) Read(b []byte) (n int, err error) {
	for {
		c.mu.Lock()
		change := c.change
		switch {
		case c.closed:
			c.mu.Unlock()
			return 0, net.ErrClosed
		case len(c.queue) > 0:
			n = copy(b, c.queue[0])
			if c.queue[0] = c.queue[0][n:]; len(c.queue[0]) == 0 {
				c.queue = c.queue[1:]
			}
			c.held -= n
			c.mu.Unlock()
			c.acknowledge(n)
			return n, nil
		case c.last != nil && c.next >= *c.last:
			c.mu.Unlock()
			_ = c.CloseWrite() // as TCP ends a connection in both directions, where its process has gone
			return 0, io.EOF
		}
		c.mu.Unlock()
		select {
		case <-change:
		case <-c.ctx.Done():
			return 0, net.ErrClosed
		}
	}
}

// acknowledge tells the other end what was read, now and then.
func (c *channel) acknowledge(n int) {
	if c.taken += uint64(n); c.taken-c.told < channelWindow/4 {
		return
	}
	c.told = c.taken
	_ = c.deliver(&mail{kind: kindRead, channel: c.id, number: c.taken}) // the error is a closed channel's
}

// Write implements io.Writer: it returns when all is in the other's mailbox.
func (c *channel) Write(b []byte) (n int, err error) {
	for n < len(b) {
		piece := b[n:min(len(b), n+recordHead+recordMax+recordTag)]
		if err := c.room(len(piece)); err != nil {
			return n, err
		}
		if err := c.deliver(&mail{kind: kindData, channel: c.id, number: c.pieces.Load(), data: piece}); err != nil {
			return n, err
		}
		c.pieces.Add(1)
		c.written += uint64(len(piece))
		n += len(piece)
	}
	return n, nil
}

// room waits until the other end has read enough.
func (c *channel) room(n int) error {
	for {
		c.mu.Lock()
		fits, change := c.written+uint64(n)-c.read <= channelWindow, c.change
		c.mu.Unlock()
		if fits {
			return nil
		}
		select {
		case <-change:
		case <-c.ctx.Done():
			return net.ErrClosed
		}
	}
}

// deliver sends a mail until it has come.
func (c *channel) deliver(m *mail) error {
	for pause := sendPause; ; pause = min(2*pause, sendPauseMax) {
		err := c.send(c.ctx, m)
		if err == nil {
			return nil
		}
		select {
		case <-c.ctx.Done():
			return net.ErrClosed
		case <-time.After(pause):
		}
	}
}

// CloseWrite tells the other end that nothing follows.
func (c *channel) CloseWrite() error {
	return c.send(c.ctx, &mail{kind: kindEnd, channel: c.id, number: c.pieces.Load()})
}

// Close implements io.Closer. It does not wait.
func (c *channel) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.cancel()
	c.changed()
	return nil
}
