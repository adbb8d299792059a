package node

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
	return n.setDrainLocked(d)
}

// setDrainLocked is setDrain; the caller holds draining. Where d could not be stored, the
// store is made to say again what noded says, as soon as it can: d may be there too late.
func (n *Node) setDrainLocked(d drainRecord) error {
	err := n.store.setDrain(d)
	if err != nil {
		n.storeLater(func() error {
			n.draining.Lock()
			defer n.draining.Unlock()
			return n.store.setDrain(n.reg.drain())
		}, func(bool) {})
		return err
	}
	n.reg.setDrain(d)
	return nil
}

// drainSelf drains the node for what has happened on it. The first reason stays
// until the node is resumed; steps that run go on.
func (n *Node) drainSelf(reason string) {
	reason = message(reason) // a plugin's words may be in it
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
	if err := n.setDrainLocked(drainRecord{Drained: true, Reason: reason}); err != nil {
		n.log.Errorf("%v: it is tried again every %v", err, storeAgain)
		n.reg.setDrain(drainRecord{Drained: true, Reason: reason})
	}
}
