// Package health is whether a node takes jobs, and why it does not: it is drained by an
// administrator or for what has happened on it, processes are left on it that SIGKILL does not
// end, its plugins crash, its spool does not answer.
//
// It does not know jobs or steps that run: package node reports what has happened, and asks.
//
// Begin with Gate, through which requests come, and New, which restores what a Health knows.
package health

import (
	"sync"

	"stepd/api"
	"stepd/node/state"
)

// Gate is where requests for a place come in: it is closed when noded stops, and while the
// node is drained. Methods may be called from several goroutines.
type Gate struct {
	// Changed is called when requests that wait may be refused now.
	Changed func()
	// Silence returns why the spool is not to be asked: the node is drained as long as it
	// returns an error. nil is never.
	Silence func() error

	mu      sync.Mutex
	closing bool        // guarded by mu
	drained state.Drain // guarded by mu: the drain that is stored
}

// Close refuses all requests from now on.
func (g *Gate) Close() {
	g.mu.Lock()
	g.closing = true
	g.mu.Unlock()
	g.Changed()
}

// Closing reports whether Close was called.
func (g *Gate) Closing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closing
}

// Set sets the drain, which its caller has stored or will store.
func (g *Gate) Set(d state.Drain) {
	g.mu.Lock()
	g.drained = d
	g.mu.Unlock()
	g.Changed()
}

// Drain is the drain that was set, and DrainNow the drain that counts now: a spool that does
// not answer drains the node as well.
func (g *Gate) Drain() state.Drain {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drained
}

// DrainNow is documented with Drain.
func (g *Gate) DrainNow() state.Drain {
	d := g.Drain()
	if d.Drained || g.Silence == nil {
		return d
	}
	if err := g.Silence(); err != nil {
		return state.Drain{Drained: true, Reason: err.Error()}
	}
	return d
}

// Admits returns why a request is refused, as its client's answer. Jobs that run take steps on
// a drained node, which takes no new job.
func (g *Gate) Admits(newJob bool) error {
	if g.Closing() {
		return api.NewError(api.Unavailable, "noded is stopping")
	}
	if !newJob {
		return nil
	}
	if d := g.DrainNow(); d.Drained {
		return api.Errorf(api.FailedPrecondition, "node is drained: %s", d.Reason)
	}
	return nil
}
