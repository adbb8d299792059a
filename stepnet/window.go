package stepnet

import (
	"fmt"
	"sync"
)

// outWindow is what may still be sent on one channel of one hop. Those who wait
// for room get it in the order in which they came, so that no rank starves another.
type outWindow struct {
	mu      sync.Mutex
	room    int     // guarded by mu
	given   uint64  // guarded by mu: bytes that the other end has made room for
	closed  bool    // guarded by mu
	waiters []*want // guarded by mu
}

type want struct {
	n  int
	ok chan bool // size 1: who gives does not wait
}

func newOutWindow() *outWindow { return &outWindow{room: window} }

// take waits for room for n bytes. false says that there will be none: nobody is
// at the other end.
func (w *outWindow) take(n int) bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return false
	}
	if len(w.waiters) == 0 && w.room >= n {
		w.room -= n
		w.mu.Unlock()
		return true
	}
	me := &want{n, make(chan bool, 1)}
	w.waiters = append(w.waiters, me)
	w.mu.Unlock()
	return <-me.ok
}

// give adds room that the other end has made.
func (w *outWindow) give(n int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.room += n; w.room > window {
		return fmt.Errorf("%w: more credit than the window of %d bytes", errFrame, window)
	}
	w.given += uint64(n)
	for len(w.waiters) > 0 && w.waiters[0].n <= w.room {
		w.room -= w.waiters[0].n
		w.waiters[0].ok <- true
		w.waiters = w.waiters[1:]
	}
	return nil
}

// waited tells whether somebody waits for room.
func (w *outWindow) waited() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiters) > 0
}

// moved tells how much the other end has taken so far.
func (w *outWindow) moved() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.given
}

func (w *outWindow) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, me := range w.waiters {
		me.ok <- false
	}
	w.waiters = nil
}

// inbox holds what has come on one channel of one hop until it is consumed. The
// other end sends no more than the window allows.
type inbox struct {
	mu     sync.Mutex
	queue  []item // guarded by mu
	held   int    // guarded by mu: bytes here, or consumed and not told of yet
	closed bool   // guarded by mu
	wake   chan struct{}
}

// item is a frame's body; none is the end of the channel.
type item struct {
	kind kind
	body []byte
	last bool
}

func (i item) size() int { return frameHead + len(i.body) }

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

// put takes a frame over.
func (b *inbox) put(i item) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !i.last {
		if b.held += i.size(); b.held > window {
			return fmt.Errorf("%w: more than the window of %d bytes", errFrame, window)
		}
	}
	b.queue = append(b.queue, i)
	b.nudge()
	return nil
}

func (b *inbox) nudge() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// close ends the channel once what is here was consumed.
func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.nudge()
}

// consume calls use, which keeps nothing of it, for each item until the end of the
// channel, in order, and tells by credit, now and then, how much room that made. It
// returns whether the channel was brought to its end, not cut off.
func (b *inbox) consume(use func(item), credit func(n int)) bool {
	owed := 0
	for {
		b.mu.Lock()
		if len(b.queue) == 0 {
			closed := b.closed
			b.mu.Unlock()
			if closed {
				return false
			}
			<-b.wake
			continue
		}
		i := b.queue[0]
		b.queue[0] = item{}
		if b.queue = b.queue[1:]; len(b.queue) == 0 {
			b.queue = nil
		}
		b.mu.Unlock()
		if i.last {
			return true
		}
		use(i)
		if i.kind == kindOutput { // what else has this capacity is not of the pool
			freePiece(i.body)
		}
		if owed += i.size(); owed >= window/4 {
			b.mu.Lock()
			b.held -= owed
			b.mu.Unlock()
			credit(owed)
			owed = 0
		}
	}
}
