package stepnet

import "fmt"

// A LostError says which node of a step was lost.
type LostError struct {
	Node  int // its id
	Name  string
	Cause string
}

func (e *LostError) Error() string {
	return fmt.Sprintf("lost node %q (node %d of the step): %s", e.Name, e.Node, e.Cause)
}

// linkEnded is called when a link is gone.
func (n *Node) linkEnded(l *link, err error) {
	if n.ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	fine := n.isOver
	if l == n.up {
		fine = fine || n.toldDone // it has ended, or is lost: our part was done
	} else {
		fine = fine || n.doneBelow[l.peer]
		n.doneBelow[l.peer] = true
	}
	n.mu.Unlock()
	if !fine {
		n.lose(l.peer, err.Error(), nil)
	}
	n.advance()
}

// lose notes that a node is lost, once, and reports it to all but the
// neighbour that reported it.
func (n *Node) lose(node int, cause string, from *link) {
	err := &LostError{Node: node, Name: n.cfg.Names[node], Cause: cause}
	n.mu.Lock()
	if n.lost != nil || n.isOver {
		n.mu.Unlock()
		return
	}
	n.lost = err
	n.mu.Unlock()
	n.gatherings.fail(err)
	n.failCalls(err)
	for _, l := range n.links() {
		if l != from {
			l.push(lostFrame(node, cause))
		}
	}
	if n.cfg.Lost != nil {
		n.cfg.Lost(err)
	}
}

// lostError is why the tree does not hold any more, nil where it does.
func (n *Node) lostError() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.lost != nil:
		return n.lost
	case n.isOver:
		return errOver
	}
	return nil
}
