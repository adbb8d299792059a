package node

import "stepd/node/child"

// drainRecord is the node's drain state; the zero value is not drained.
type drainRecord struct {
	Drained bool   `json:"drained"`
	Reason  string `json:"reason"`
	// Owner is who ends the drain: ownerHeld, or "" for an administrator.
	Owner string `json:"owner,omitempty"`
}

// ownerHeld: noded has drained the node for processes that do not die, and ends
// the drain with them, unless an administrator has changed it meanwhile.
const ownerHeld = "unkillable"

// setDrain changes the state for ever, and then for the next request.
func (n *Node) setDrain(d drainRecord) error {
	n.draining.Lock()
	defer n.draining.Unlock()
	if !d.Drained {
		n.waive()
	}
	if err := n.store.setDrain(d); err != nil {
		return err
	}
	n.reg.setDrain(d)
	return nil
}

// noteDrain changes the state for what has happened. The caller holds draining.
func (n *Node) noteDrain(d drainRecord) {
	n.reg.setDrain(d)
	if err := owed(n.store.noteDrain(d), n.log); err != nil {
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
	n.noteDrain(drainRecord{Drained: true, Reason: reason})
}
