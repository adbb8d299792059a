package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"stepd/api"
	"stepd/step"
)

// A request that does not fit waits where its client wants that (Request.ImmediateS): jobs in
// one line of the node, steps in a line of their job, in the order of asking. It waits as
// long as its connection lasts, and nothing of it is stored.

// line is the requests that wait for the same, the first one first. The registry's lock
// guards it.
type line []*waiter

// waiter is a request that may wait.
type waiter struct {
	uid uint32
	in  *line // nil while it has no place in one; it counts as a step of its user's there
	// last: its time is over, and what blocks it is to be said.
	last bool
}

// errTurn is the answer to a try of a waiter that waits on: many may be woken at once, and it
// is to cost little.
var errTurn = errors.New("others come first")

// silent reports whether a refusal of w's try is not passed on: it waits on.
func (w *waiter) silent() bool { return w != nil && !w.last }

// waits reports whether w has a place in a line.
func (w *waiter) waits() bool { return w != nil && w.in != nil }

// ahead counts the requests that come before w, which may be nil.
func (l *line) ahead(w *waiter) int {
	if i := slices.Index(*l, w); i >= 0 {
		return i
	}
	return len(*l)
}

// joinLocked puts w behind the others, unless it waits already.
func (r *registry) joinLocked(l *line, w *waiter) {
	if w == nil || w.in != nil {
		return
	}
	w.in = l
	*l = append(*l, w)
	r.byUser[w.uid]++
}

// leave ends the wait of w, whatever came of it: the next one is first.
func (r *registry) leave(w *waiter) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveLine(w)
}

// leaveLine is leave; the caller holds the lock.
func (r *registry) leaveLine(w *waiter) {
	if !w.waits() {
		return
	}
	l := w.in
	w.in = nil
	r.leaveUser(w.uid)
	if i := slices.Index(*l, w); i >= 0 {
		*l = slices.Delete(*l, i, i+1)
		r.tellFreed()
	}
}

// admitFor is admit for a client that waits as long as the request says.
func (r *registry) admitFor(ctx context.Context, req *step.Request, uid uint32, asRoot bool) (*admission, error) {
	if req.ImmediateS == nil || *req.ImmediateS == 0 {
		return r.admit(ctx, req, uid, asRoot)
	}
	var late <-chan time.Time
	if *req.ImmediateS != step.WaitForever {
		timer := time.NewTimer(time.Duration(*req.ImmediateS) * time.Second)
		defer timer.Stop()
		late = timer.C
	}
	return r.admitWaiting(ctx, late, req, uid, asRoot)
}

// admitWaiting is admit that waits for room until late, or ctx's end.
func (r *registry) admitWaiting(ctx context.Context, late <-chan time.Time, req *step.Request, uid uint32, asRoot bool) (*admission, error) {
	ctx, stop := whileConnected(ctx)
	defer stop()
	w := &waiter{uid: uid}
	defer r.leave(w)
	for {
		a, freed, err := r.tryAdmit(req, uid, asRoot, w)
		if err == nil || freed == nil || w.last {
			return a, err
		}
		select {
		case <-freed:
		case <-late:
			w.last = true
		case <-ctx.Done():
			return nil, api.ContextError(ctx.Err())
		}
	}
}

// waitsFor is the answer to a request that would be met if it waited; what completes
// "waiting for".
func waitsFor(text, what string) error {
	return &api.Error{Code: api.ResourceExhausted, Message: text, Waits: what}
}
