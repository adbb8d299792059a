package node

import (
	"stepd/api"
	"stepd/node/child"
	"stepd/node/state"
	"sync"
)

// setDrain changes the state for ever, and then for the next request.
func (n *Node) setDrain(d state.Drain) error {
	n.draining.Lock()
	defer n.draining.Unlock()
	if !d.Drained {
		n.waive()
	}
	if err := n.store.SetDrain(d); err != nil {
		return err
	}
	n.gate.setDrain(d)
	return nil
}

// noteDrain changes the state for what has happened. The caller holds draining.
func (n *Node) noteDrain(d state.Drain) {
	n.gate.setDrain(d)
	if err := state.LogOwed(n.store.NoteDrain(d), n.log); err != nil {
		n.log.Errorf("%v: it is tried again", err)
	}
}

// drainSelf drains the node for what has happened on it. The first reason stays
// until the node is resumed; steps that run go on.
func (n *Node) drainSelf(reason string) {
	reason = child.Message(reason) // a plugin's words may be in it
	n.draining.Lock()
	defer n.draining.Unlock()
	switch d := n.gate.drain(); {
	case d.Owner != "" && d.Drained:
		// Two reasons, and the end of one must not end the other.
		reason = d.Reason + "; " + reason
	case d.Drained:
		n.log.Warnf("the node is drained already (%s); now there is also: %s", d.Reason, reason)
		return
	}
	n.log.Errorf("draining the node: %s", reason)
	n.noteDrain(state.Drain{Drained: true, Reason: reason})
}

// gate is where requests for a place come in: it is closed when noded stops, and while the
// node is drained.
type gate struct {
	// changed wakes the requests that wait, which may be refused now.
	changed *bell
	// silence returns why the spool is not to be asked: the node is drained as long as it
	// returns something. nil is nothing.
	silence func() error

	mu      sync.Mutex
	closing bool        // guarded by mu
	drained state.Drain // guarded by mu: the drain that is stored
}

// close refuses all requests from now on.
func (g *gate) close() {
	g.mu.Lock()
	g.closing = true
	g.mu.Unlock()
	g.changed.ring()
}

func (g *gate) setDrain(d state.Drain) {
	g.mu.Lock()
	g.drained = d
	g.mu.Unlock()
	g.changed.ring()
}

// drain is the drain that is stored.
func (g *gate) drain() state.Drain {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drained
}

// drainNow is the drain that counts now.
func (g *gate) drainNow() state.Drain {
	d := g.drain()
	if d.Drained || g.silence == nil {
		return d
	}
	if err := g.silence(); err != nil {
		return state.Drain{Drained: true, Reason: err.Error()}
	}
	return d
}

func (g *gate) isClosing() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closing
}

// admits refuses a request; jobs that run take steps on a drained node, and no new job comes.
func (g *gate) admits(newJob bool) error {
	if g.isClosing() {
		return api.NewError(api.Unavailable, "noded is stopping")
	}
	if d := g.drainNow(); d.Drained && newJob {
		return api.Errorf(api.FailedPrecondition, "node is drained: %s", d.Reason)
	}
	return nil
}
