package stepnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// linkBytes bounds what waits on a link, of senders that can wait. A single frame may
	// be larger.
	linkBytes = 4 << 20
	// linkBuffer is what is written and read at once.
	linkBuffer = 64 << 10
	// flushTime is how long the last words may take.
	flushTime = 5 * time.Second
)

// link is one hop, to the parent or to a child.
type link struct {
	peer     int // node id
	conn     net.Conn
	frameMax int
	// handle takes over a frame, on the reader's goroutine. ended is called once when
	// the link is gone, and why.
	handle func(l *link, k kind, body []byte) error
	ended  func(l *link, err error)
	// room is for linkBytes: senders get theirs in the order in which they asked.
	room *semaphore.Weighted

	mu      sync.Mutex
	queue   []queued        // guarded by mu
	closing bool            // guarded by mu: nothing more is taken
	err     error           // guarded by mu: why it is gone
	wake    chan struct{}   // size 1: something is to be sent
	life    context.Context // ends when it is gone
	die     context.CancelFunc
	reading atomic.Bool   // it waits for the other end
	sent    atomic.Uint64 // frames
	got     atomic.Uint64 // bytes
	wg      sync.WaitGroup
}

// queued is a frame that is to be sent, and the room that it has.
type queued struct {
	f    frame
	room int64
}

func newLink(peer int, conn net.Conn, frameMax int, handle func(*link, kind, []byte) error, ended func(*link, error)) *link {
	l := &link{
		peer: peer, conn: conn, frameMax: frameMax, handle: handle, ended: ended,
		room: semaphore.NewWeighted(linkBytes), wake: make(chan struct{}, 1),
	}
	l.life, l.die = context.WithCancel(context.Background())
	return l
}

// start begins to send and to receive.
func (l *link) start() {
	l.wg.Go(l.read)
	l.wg.Go(l.write)
}

func (l *link) isGone() bool { return l.life.Err() != nil }

// push queues a frame of a few bytes, which does not wait.
func (l *link) push(f frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.enqueue(queued{f: f})
}

// pushWait queues a frame when there is room for it. Its error is ctx's, or why
// the link is gone.
func (l *link) pushWait(ctx context.Context, f frame) error {
	room := int64(min(len(f), linkBytes))
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	defer context.AfterFunc(l.life, stop)()
	err := l.room.Acquire(waiting, room)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.err != nil:
		return l.err
	case err != nil:
		return context.Cause(ctx)
	}
	l.enqueue(queued{f, room})
	return nil
}

// enqueue is called with mu held.
func (l *link) enqueue(q queued) {
	if l.err != nil || l.closing {
		return
	}
	l.queue = append(l.queue, q)
	l.nudge()
}

func (l *link) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// next takes the frame that goes out next.
func (l *link) next() (q queued, closing bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) > 0 {
		q = l.queue[0]
		l.queue[0] = queued{}
		if l.queue = l.queue[1:]; len(l.queue) == 0 {
			l.queue = nil
		}
	}
	return q, l.closing
}

// write sends what is queued until the link is gone, or closing and empty.
func (l *link) write() {
	w := bufio.NewWriterSize(l.conn, linkBuffer)
	for {
		q, closing := l.next()
		var err error
		switch {
		case q.f != nil:
			l.sent.Add(1)
			_, err = w.Write(q.f)
			l.room.Release(q.room)
		case w.Buffered() > 0:
			err = w.Flush()
		case closing:
			l.endWriting()
			return
		default:
			select {
			case <-l.wake:
			case <-l.life.Done():
				return
			}
		}
		if err != nil {
			l.fail(fmt.Errorf("cannot send: %w", err))
			return
		}
	}
}

// endWriting lets the other end read on to its end, where the connection can.
func (l *link) endWriting() {
	if half, ok := l.conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return
	}
	l.conn.Close()
}

// Read counts what comes in.
func (l *link) Read(b []byte) (n int, err error) {
	n, err = l.conn.Read(b)
	l.got.Add(uint64(n))
	return n, err
}

// read hands over what comes in until the link is gone.
func (l *link) read() {
	r := bufio.NewReaderSize(l, linkBuffer)
	for {
		l.reading.Store(true)
		k, body, err := readFrame(r, l.frameMax)
		l.reading.Store(false)
		if errors.Is(err, io.EOF) {
			err = errors.New("the connection has ended")
		}
		if err == nil && k != kindPing {
			err = l.handle(l, k, body)
		}
		if err != nil {
			l.fail(err)
			return
		}
	}
}

// fail ends the link at once, for the first cause.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	l.queue = nil
	l.die()
	l.mu.Unlock()
	l.conn.Close()
	l.ended(l, err)
}

// shut ends the link when what is queued was sent.
func (l *link) shut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closing = true
	_ = l.conn.SetWriteDeadline(time.Now().Add(flushTime)) // without one Close ends it
	l.nudge()
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

// beat looks at a link, beatsPerPing times within every. Time in which this process itself
// could not run does not count against the other end: a beat is missed then, too.
func (p *pulse) beat(l *link, every time.Duration) {
	if l.isGone() {
		return
	}
	sent := l.sent.Load()
	if p.idle++; sent != p.sent {
		p.sent, p.idle = sent, 0
	}
	if p.idle >= beatsPerPing-1 {
		l.push(plainFrame(kindPing))
	}
	if got := l.got.Load(); got != p.got || !l.reading.Load() {
		p.got, p.silent = got, 0
		return
	}
	if p.silent++; p.silent >= silentMax*beatsPerPing {
		l.fail(fmt.Errorf("it was silent for %v", silentMax*every))
	}
}
