package stepnet

import (
	"context"
	"sync"
)

// window is room for bytes. Those who wait for some get it in the order in which they came,
// so that none of them starves another.
type window struct {
	size int

	mu      sync.Mutex
	room    int     // guarded by mu
	closed  bool    // guarded by mu
	waiters []*want // guarded by mu
}

type want struct {
	n  int
	ok chan bool // size 1: who gives does not wait
}

func newWindow(size int) *window { return &window{size: size, room: size} }

// take waits for room for n bytes, at most all of it, and returns how much was taken. The
// error is ctx's cause, or errClosed.
func (w *window) take(ctx context.Context, n int) (int, error) {
	n = min(n, w.size)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return 0, errClosed
	}
	if len(w.waiters) == 0 && w.room >= n {
		w.room -= n
		w.mu.Unlock()
		return n, nil
	}
	me := &want{n, make(chan bool, 1)}
	w.waiters = append(w.waiters, me)
	w.mu.Unlock()
	select {
	case ok := <-me.ok:
		if !ok {
			return 0, errClosed
		}
		return n, nil
	case <-ctx.Done():
	}
	w.leave(me)
	return 0, context.Cause(ctx)
}

// leave gives back what one who has stopped waiting has, or was about to get.
func (w *window) leave(me *want) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case ok := <-me.ok:
		if ok {
			w.room += me.n
		}
	default:
		for i := range w.waiters {
			if w.waiters[i] == me {
				w.waiters = append(w.waiters[:i], w.waiters[i+1:]...)
				break
			}
		}
	}
	w.serve()
}

// give makes n bytes of room again.
func (w *window) give(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.room += n
	w.serve()
}

// serve lets those in whose turn it is. The caller holds mu.
func (w *window) serve() {
	for len(w.waiters) > 0 && w.waiters[0].n <= w.room {
		w.room -= w.waiters[0].n
		w.waiters[0].ok <- true
		w.waiters = w.waiters[1:]
	}
}

// close refuses those who wait, and all that come.
func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, me := range w.waiters {
		me.ok <- false
	}
	w.waiters = nil
}
