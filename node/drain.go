package node

import (
	"stepd/node/child"
	"stepd/node/state"
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
	n.reg.setDrain(d)
	return nil
}

// noteDrain changes the state for what has happened. The caller holds draining.
func (n *Node) noteDrain(d state.Drain) {
	n.reg.setDrain(d)
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
	switch d := n.reg.drain(); {
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
