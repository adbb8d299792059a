package stepnet

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// urgentMax bounds the bytes that wait on a link beside the channels' windows:
// who relays or calls waits for room. A single frame may be larger.
const urgentMax = 4 << 20

// flushTime is how long the last words may take.
const flushTime = 5 * time.Second

// meteredConn counts what comes in. It is between TLS and the kernel, and brings
// together what TLS would have the kernel take and give by records of 16 KiB.
type meteredConn struct {
	net.Conn
	got  atomic.Uint64
	read struct { // the reader's
		buf      []byte // nil before the other end is known, and of a lean link
		from, to int    // of buf: what TLS has not taken yet
	}

	mu     sync.Mutex
	corked bool   // guarded by mu
	held   []byte // guarded by mu: written while corked
}

// leanAbove is from how many children on a node's links to them save memory. A tree has no
// such node; where no node may be between two others (Layout.NoKill), node 0 has all of
// the step's as children.
const leanAbove = 64

// leanSize is what such a link writes at once.
const leanSize = 8 << 10

// heldMax is the most memory that a link keeps for its next records.
const heldMax = 128 << 10

// meteredSize is what is read at once.
const meteredSize = 64 << 10

func (c *meteredConn) Read(b []byte) (n int, err error) {
	r := &c.read
	if r.buf == nil {
		n, err = c.Conn.Read(b)
		c.got.Add(uint64(n))
		return n, err
	}
	if r.from == r.to {
		n, err = c.Conn.Read(r.buf)
		c.got.Add(uint64(n))
		r.from, r.to = 0, n
	}
	n = copy(b, r.buf[r.from:r.to])
	r.from += n
	return n, err
}

func (c *meteredConn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.corked {
		return c.Conn.Write(b)
	}
	c.held = append(c.held, b...)
	return len(b), nil
}

// together has write's records go out in one piece, or all that is held of them. It is
// called by one at a time. What others write meanwhile (TLS its answers, on the reader's
// goroutine) goes out behind, and does not wait for an end that does not read.
func (c *meteredConn) together(write func() error) error {
	c.mu.Lock()
	c.corked = true
	c.mu.Unlock()
	err := write()
	var sent []byte // its memory
	for {
		c.mu.Lock()
		held := c.held
		c.held = sent
		if len(held) == 0 {
			if c.corked = false; sent == nil {
				c.held = held
			}
			c.mu.Unlock()
			return err
		}
		c.mu.Unlock()
		_, werr := c.Conn.Write(held)
		err, sent = errors.Join(err, werr), held[:0]
		if cap(held) > heldMax { // a large frame
			sent = nil
		}
	}
}

// sender is where a link's frames go.
type sender struct {
	conn  *tls.Conn
	meter *meteredConn
}

func (s sender) Write(b []byte) (n int, err error) {
	err = s.meter.together(func() (err error) {
		n, err = s.conn.Write(b)
		return err
	})
	return n, err
}

// link is one hop: to the parent, to a child, or between node 0 and the
// launcher. It is there before its connection is, and holds what is to be sent.
type link struct {
	peer     int // node id, or launcherID
	frameMax int
	lean     bool // it saves memory, at the cost of more system calls; before attach
	// handle takes over a frame, on the reader's goroutine. ended is told once that
	// the link is gone, and why.
	handle func(l *link, k kind, body []byte) error
	ended  func(l *link, err error)

	out [channels]*outWindow
	in  [channels]*inbox

	mu      sync.Mutex
	urgent  []frame       // guarded by mu
	bulk    []frame       // guarded by mu
	bytes   int           // guarded by mu: in urgent
	room    chan struct{} // guarded by mu: closed when bytes has fallen; nil nobody waits
	conn    net.Conn      // guarded by mu
	meter   *meteredConn  // guarded by mu
	closing bool          // guarded by mu: nothing more is taken
	err     error         // guarded by mu: why it is gone
	wake    chan struct{} // size 1: something is to be sent
	gone    chan struct{} // closed when it is gone
	// attached is closed when it has its connection.
	attached chan struct{}
	reading  atomic.Bool   // it waits for the other end
	sent     atomic.Uint64 // frames
	wg       sync.WaitGroup
}

func newLink(peer, frameMax int, handle func(*link, kind, []byte) error, ended func(*link, error)) *link {
	l := &link{peer: peer, frameMax: frameMax, handle: handle, ended: ended, wake: make(chan struct{}, 1), gone: make(chan struct{}), attached: make(chan struct{})}
	for c := range channels {
		l.out[c], l.in[c] = newOutWindow(), newInbox()
	}
	return l
}

// errSecond refuses a second connection of the same end.
var errSecond = errors.New("it is connected already")

// attach begins to use a connection, whose hello frames were exchanged.
func (l *link) attach(conn *tls.Conn, r *bufio.Reader, m *meteredConn) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if l.conn != nil {
		return errSecond
	}
	l.conn, l.meter = conn, m
	if !l.lean {
		m.read.buf = make([]byte, meteredSize)
	}
	close(l.attached)
	l.wg.Add(2)
	go func() { defer l.wg.Done(); l.read(r) }()
	go func() { defer l.wg.Done(); l.write(conn, m) }()
	return nil
}

func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

func (l *link) isGone() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// push queues a frame that is not to wait.
func (l *link) push(f frame) { l.queue(f, &l.urgent) }

// pushBulk queues a frame for which its channel had room, behind all that is
// urgent.
func (l *link) pushBulk(f frame) { l.queue(f, &l.bulk) }

func (l *link) queue(f frame, q *[]frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil || l.closing {
		return
	}
	*q = append(*q, f)
	if q == &l.urgent {
		l.bytes += len(f)
	}
	l.nudge()
}

// pushWait queues a frame when there is room for it. Its error is ctx's, or why
// the link is gone.
func (l *link) pushWait(ctx context.Context, f frame) error {
	for {
		l.mu.Lock()
		if l.err != nil {
			defer l.mu.Unlock()
			return l.err
		}
		if l.bytes == 0 || l.bytes+len(f) <= urgentMax {
			l.mu.Unlock()
			l.push(f)
			return nil
		}
		if l.room == nil {
			l.room = make(chan struct{})
		}
		room := l.room
		l.mu.Unlock()
		select {
		case <-room:
		case <-l.gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (l *link) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// next takes the frame that goes out next.
func (l *link) next() (f frame, closing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	take := func(q *[]frame) frame {
		f := (*q)[0]
		(*q)[0] = nil
		if *q = (*q)[1:]; len(*q) == 0 {
			*q = nil
		}
		return f
	}
	switch {
	case len(l.urgent) > 0:
		f = take(&l.urgent)
		if l.bytes -= len(f); l.room != nil && l.bytes <= urgentMax/2 {
			close(l.room)
			l.room = nil
		}
	case len(l.bulk) > 0:
		f = take(&l.bulk)
	}
	return f, l.closing
}

// write sends what is queued until the link is gone, or closing and empty.
func (l *link) write(conn *tls.Conn, m *meteredConn) {
	size := 64 << 10
	if l.lean {
		size = leanSize
	}
	w := bufio.NewWriterSize(sender{conn, m}, size)
	for {
		f, closing := l.next()
		var err error
		switch {
		case f != nil:
			l.sent.Add(1)
			_, err = w.Write(f)
			if kind(f[frameHead-1]) == kindOutput {
				freePiece(f)
			}
		case w.Buffered() > 0:
			err = w.Flush()
		case closing:
			conn.CloseWrite() // the other end reads on until it is told
			return
		default:
			select {
			case <-l.wake:
			case <-l.gone:
				return
			}
		}
		if err != nil {
			l.fail(fmt.Errorf("cannot send: %w", err))
			return
		}
	}
}

// read hands over what comes in until the link is gone.
func (l *link) read(r *bufio.Reader) {
	for {
		l.reading.Store(true)
		k, body, err := readFrame(r, l.frameMax)
		l.reading.Store(false)
		if errors.Is(err, io.EOF) {
			err = errors.New("the connection has ended")
		}
		if err == nil {
			err = l.receive(k, body)
		}
		if err != nil {
			l.fail(err)
			return
		}
	}
}

// receive does itself what is of the hop alone.
func (l *link) receive(k kind, body []byte) error {
	switch k {
	case kindPing:
		return nil
	case kindCredit:
		channel, n, err := parseCredit(body)
		if err != nil {
			return err
		}
		return l.out[channel].give(n)
	}
	return l.handle(l, k, body)
}

// finishChannels marks the end of the channels from first on.
func (l *link) finishChannels(first int) {
	for c := first; c < channels; c++ {
		l.in[c].put(item{last: true}) // always room for it
	}
}

// credit tells the other end of room on a channel.
func (l *link) credit(channel int) func(n int) {
	return func(n int) { l.push(creditFrame(channel, n)) }
}

// fail ends the link at once, for the first cause.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	l.urgent, l.bulk = nil, nil
	conn := l.meter
	close(l.gone)
	l.mu.Unlock()
	if conn != nil {
		conn.Close() // the TCP connection below: TLS's own close waits for its writer
	}
	for c := range channels {
		l.out[c].close()
		l.in[c].close()
	}
	l.ended(l, err)
}

// shut ends the link when what is queued was sent.
func (l *link) shut() {
	l.mu.Lock()
	l.closing = true
	if l.conn != nil {
		l.conn.SetWriteDeadline(time.Now().Add(flushTime))
	}
	l.nudge()
	l.mu.Unlock()
}

// pulse is called by a ticker: it says that this end is alive where it has said
// nothing else.
type pulse struct {
	sent, got    uint64
	idle, silent int // beats
}

const (
	// silentMax is how many pings of an end may be missing.
	silentMax = 3
	// beatsPerPing is how often within the time of one a link is looked at.
	beatsPerPing = 2
)

// beat looks at a link, beatsPerPing times within every. Time in which this process itself could not run does not
// count against the other end: a beat is missed then, too.
func (p *pulse) beat(l *link, every time.Duration) {
	l.mu.Lock()
	m := l.meter
	l.mu.Unlock()
	if m == nil || l.isGone() {
		return
	}
	sent := l.sent.Load()
	if p.idle++; sent != p.sent {
		p.sent, p.idle = sent, 0
	}
	if p.idle >= beatsPerPing-1 {
		l.push(plainFrame(kindPing))
	}
	if got := m.got.Load(); got != p.got || !l.reading.Load() {
		p.got, p.silent = got, 0
		return
	}
	if p.silent++; p.silent >= silentMax*beatsPerPing {
		l.fail(fmt.Errorf("nothing was heard of it for %v", silentMax*every))
	}
}
