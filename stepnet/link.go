package stepnet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/semaphore"
)

// servedMax bounds the calls that are answered on one node at a time, and
// servedBytes their data.
const (
	servedMax   = 64 << 10
	servedBytes = 256 << 20
)

// Answer is what Handle takes.
type Answer = func(ctx context.Context, from int, data []byte) ([]byte, error)

// calls are the questions on their way. They go along the tree: a connection of
// its own for each pair would cost a handshake (1 ms) for what is mostly one
// question, n² sockets where all ask all, and another way to lose a node. With 16
// branches no node is more than three hops from the root.
type calls struct {
	callMu  sync.Mutex
	asked   map[int]chan *call // guarded by callMu: by number; size 1, nil is no answer
	answers map[string]Answer  // guarded by callMu
	more    chan struct{}      // guarded by callMu: closed when answers has grown
	callErr error              // guarded by callMu: there will be no more answers
	serving int                // guarded by callMu
	bytes   int                // guarded by callMu: the size of the questions being served
	asking  chan struct{}      // a place for each question of this node
}

// Handle implements launch.Peers. A call that comes before its handler waits.
func (n *Node) Handle(name string, answer func(ctx context.Context, from int, data []byte) ([]byte, error)) {
	n.callMu.Lock()
	defer n.callMu.Unlock()
	n.answers[name] = answer
	close(n.more)
	n.more = make(chan struct{})
}

// Call implements launch.Peers.
func (n *Node) Call(ctx context.Context, node int, name string, data []byte) ([]byte, error) {
	if node < 0 || node >= n.nodes {
		return nil, fmt.Errorf("cannot call node %d: the step has %d", node, n.nodes)
	}
	answer, err := n.call(ctx, &call{to: node, from: n.self, name: name, data: data})
	if err != nil {
		return nil, fmt.Errorf("cannot call %.80q of node %s: %w", name, n.cfg.Names[node], err)
	}
	return answer, nil
}

func (n *Node) call(ctx context.Context, c *call) ([]byte, error) {
	switch {
	case len(c.data) > n.lim.Message:
		return nil, fmt.Errorf("%d bytes: at most %d", len(c.data), n.lim.Message)
	case len(c.name) > gatherNameMax:
		return nil, fmt.Errorf("a name of %d bytes: at most %d", len(c.name), gatherNameMax)
	}
	select {
	case n.asking <- struct{}{}:
		defer func() { <-n.asking }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	reply := make(chan *call, 1)
	n.callMu.Lock()
	if n.callErr != nil {
		defer n.callMu.Unlock()
		return nil, n.callErr
	}
	// By its number alone a reply is the caller's: no other node may guess it.
	for c.number == 0 || n.asked[c.number] != nil {
		c.number = rand.IntN(1 << 30)
	}
	n.asked[c.number] = reply
	n.callMu.Unlock()
	defer func() {
		n.callMu.Lock()
		delete(n.asked, c.number)
		n.callMu.Unlock()
	}()
	if c.to == n.self {
		n.serve(c)
	} else if err := n.linkTo(c.to).pushWait(ctx, c.frame(kindCall)); err != nil {
		return nil, n.orLost(err)
	}
	select {
	case r := <-reply:
		switch {
		case r == nil:
			return nil, n.orLost(errOver)
		case r.problem != "":
			return nil, errors.New(r.problem)
		}
		return r.data, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// orLost is why the tree does not hold any more, or else err.
func (n *Node) orLost(err error) error {
	if lost := n.lostError(); lost != nil {
		return lost
	}
	return err
}

func (n *Node) linkTo(node int) *link {
	at := n.towards(node)
	if l := n.down[at]; l != nil {
		return l
	}
	return n.up
}

// route passes a call or an answer on, or takes it in. It may wait for room on the
// next hop: up waits for up and down, down for down alone, and nothing here waits
// for a handler, so that no circle of nodes waits for itself.
func (n *Node) route(k kind, c *call) error {
	if c.to < 0 || c.to >= n.nodes || (k == kindCall && (c.from < 0 || c.from >= n.nodes)) {
		return errFrame
	}
	if c.to != n.self {
		if err := n.linkTo(c.to).pushWait(n.ctx, c.frame(k)); err != nil {
			n.log("cannot pass on a call to node %s: %v", n.cfg.Names[c.to], err)
		}
		return nil
	}
	if k == kindCall {
		n.serve(c)
		return nil
	}
	n.callMu.Lock()
	defer n.callMu.Unlock()
	if reply := n.asked[c.number]; reply != nil {
		delete(n.asked, c.number)
		reply <- c
	}
	return nil
}

// serve answers a call, on a goroutine of its own.
func (n *Node) serve(c *call) {
	n.callMu.Lock()
	full := n.serving >= servedMax || n.bytes+len(c.data) > servedBytes
	if !full {
		n.serving++
		n.bytes += len(c.data)
	}
	n.callMu.Unlock()
	if full {
		n.wg.Go(func() {
			n.reply(c, nil, fmt.Errorf("it has %d calls to answer already, or %d bytes of them", servedMax, servedBytes))
		})
		return
	}
	n.wg.Go(func() {
		defer func() {
			n.callMu.Lock()
			n.serving--
			n.bytes -= len(c.data)
			n.callMu.Unlock()
		}()
		answer := n.awaitAnswer(c.name)
		if answer == nil {
			return // the step is over
		}
		data, err := answer(n.ctx, c.from, c.data)
		if err == nil && len(data) > n.lim.Message {
			data, err = nil, fmt.Errorf("its answer has %d bytes: at most %d", len(data), n.lim.Message)
		}
		n.reply(c, data, err)
	})
}

// awaitAnswer waits until a handler for that name exists.
func (n *Node) awaitAnswer(name string) Answer {
	for {
		n.callMu.Lock()
		answer, more := n.answers[name], n.more
		n.callMu.Unlock()
		if answer != nil {
			return answer
		}
		select {
		case <-more:
		case <-n.ctx.Done():
			return nil
		}
	}
}

func (n *Node) reply(c *call, data []byte, err error) {
	r := &call{to: c.from, number: c.number, data: data}
	if err != nil {
		if r.problem = err.Error(); r.problem == "" {
			r.problem = "it failed"
		}
		r.data = nil
	}
	if c.from == n.self {
		n.route(kindReply, r)
		return
	}
	if err := n.linkTo(c.from).pushWait(n.ctx, r.frame(kindReply)); err != nil && n.ctx.Err() == nil {
		n.log("cannot answer node %s: %v", n.cfg.Names[c.from], err)
	}
}

// failCalls ends all that wait, and those to come.
func (n *Node) failCalls(err error) {
	n.callMu.Lock()
	defer n.callMu.Unlock()
	if n.callErr == nil {
		n.callErr = err
	}
	for number, reply := range n.asked {
		delete(n.asked, number)
		reply <- nil
	}
}

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
	frameMax int
	// handle takes over a frame, on the reader's goroutine. ended is called once when
	// the link is gone, and why.
	handle func(l *link, k kind, body []byte) error
	ended  func(l *link, err error)
	// room is for linkBytes: senders get theirs in the order in which they asked.
	room *semaphore.Weighted

	conn io.ReadWriteCloser // set once, before read and write run

	mu      sync.Mutex
	begun   bool            // guarded by mu: conn is set
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

func newLink(peer, frameMax int, handle func(*link, kind, []byte) error, ended func(*link, error)) *link {
	l := &link{
		peer: peer, frameMax: frameMax, handle: handle, ended: ended,
		room: semaphore.NewWeighted(linkBytes), wake: make(chan struct{}, 1),
	}
	l.life, l.die = context.WithCancel(context.Background())
	return l
}

// attach begins to send what waits. It returns false where the link is gone, or has a connection.
func (l *link) attach(conn io.ReadWriteCloser) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.begun || l.closing || l.err != nil {
		return false
	}
	l.conn, l.begun = conn, true
	l.wg.Go(l.read)
	l.wg.Go(l.write)
	return true
}

// isUp reports whether there is another end that hears this one.
func (l *link) isUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.begun && l.err == nil
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
	var errno syscall.Errno
	if errors.As(err, &errno) && (errno == syscall.ETIMEDOUT || errno == syscall.EHOSTUNREACH) {
		err = fmt.Errorf("its host does not answer: %w", errno)
	}
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = err
	l.queue = nil
	l.die()
	begun := l.begun
	l.mu.Unlock()
	if begun {
		l.conn.Close()
	}
	l.ended(l, err)
}

// shut ends the link when what is queued was sent; one without a connection at once.
func (l *link) shut() {
	l.mu.Lock()
	l.closing = true
	begun := l.begun
	l.mu.Unlock()
	if !begun {
		l.fail(errOver)
		return
	}
	if c, ok := l.conn.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = c.SetWriteDeadline(time.Now().Add(flushTime)) // without one Close ends it
	}
	l.nudge()
}

// pulse is called by a ticker: it says that this end is alive where it has said
// nothing else.
type pulse struct {
	sent, got             uint64
	idle, silent, unheard int // beats
}

// hearer is a connection that knows for how long the other end's kernel has acknowledged nothing, 0
// where it has nothing to acknowledge.
type hearer interface{ Unheard() time.Duration }

const (
	// silentMax is how many pings of an end may be missing: a minute of them. A step daemon
	// whose node has many times more busy tasks than processors says nothing for 15 s now and
	// then. Its kernel acknowledges meanwhile: a node whose kernel does not for unheardMax pings
	// is cut off, or without power.
	silentMax, unheardMax = 12, 2
	// beatsPerPing is how often within the time of one a link is looked at.
	beatsPerPing = 2
)

// beat looks at a link, beatsPerPing times within every. Time in which this process itself
// could not run does not count against the other end: a beat is missed then, too.
func (p *pulse) beat(l *link, every time.Duration) {
	if !l.isUp() {
		return
	}
	if h, ok := l.conn.(hearer); ok {
		unheard := h.Unheard()
		if p.unheard++; unheard == 0 {
			p.unheard = 0
		}
		// The time alone says little: what is to be acknowledged may have been sent a moment ago.
		if p.unheard >= unheardMax*beatsPerPing && unheard >= unheardMax*every {
			l.fail(syscall.ETIMEDOUT)
			return
		}
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
