package stepnet

import "fmt"

var errUnasked = fmt.Errorf("%w: not from there", errFrame)

// fromAbove takes a frame of the parent.
func (n *Node) fromAbove(l *link, k kind, body []byte) error {
	switch k {
	case kindOver:
		if !n.saidDone() {
			return errUnasked
		}
		n.finished()
		return nil
	case kindGatherDown:
		return n.gatheredAbove(body)
	}
	return n.fromBoth(l, k, body)
}

// fromBelow takes a frame of a child.
func (n *Node) fromBelow(l *link, k kind, body []byte) error {
	switch k {
	case kindDone:
		n.mu.Lock()
		n.doneBelow[l.peer] = true
		n.mu.Unlock()
		n.advance()
		return nil
	case kindGatherUp:
		return n.gatheredBelow(l, body)
	}
	return n.fromBoth(l, k, body)
}

// fromBoth takes what may come from any neighbour.
func (n *Node) fromBoth(l *link, k kind, body []byte) error {
	switch k {
	case kindLost:
		node, cause, err := parseLost(body)
		if err != nil {
			return err
		}
		if node < 0 || node >= n.nodes {
			return errFrame
		}
		n.lose(node, cause, l)
		return nil
	case kindCall, kindReply:
		c, err := parseCall(k, body)
		if err != nil {
			return err
		}
		return n.route(k, c)
	}
	return errUnasked
}

// saidDone reports whether this node and all below it have said that they are done: before
// that, the parent may not say that the step is over.
func (n *Node) saidDone() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.toldDone
}
