package stepnet

// linkEnded is told of a link that is gone.
func (n *Node) linkEnded(l *link, err error) {
	if n.ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	fine := n.isOver
	switch {
	case l.peer == launcherID:
	case l == n.up:
		fine = fine || n.toldDone // it has ended, or is lost: our part was done
	default:
		fine = fine || n.saidDone[l.peer]
		n.endedBelow[l.peer] = true
	}
	n.mu.Unlock()
	switch {
	case l.peer == launcherID:
		n.launcherGone(err.Error())
	case !fine:
		n.lose(l.peer, err.Error(), nil)
	}
	if l == n.up {
		n.closeOutputs() // nobody will read
	}
	n.advance()
}

// lose notes that a node is lost, once, and tells everybody but the neighbour
// that told it.
//
// Where the step goes on without its lost nodes (Layout.NoKill), that is so for each;
// node 0's loss is that of all others, who are heard by way of it.
func (n *Node) lose(node int, cause string, from *link) {
	err := &LostError{Node: node, Name: nodeName(n.cfg.Layout, node), Cause: cause}
	apart := n.cfg.Layout.NoKill && node != 0
	n.mu.Lock()
	if n.lost != nil || n.isOver || n.without[node] != nil {
		n.mu.Unlock()
		return
	}
	if apart {
		n.without[node] = err
	} else {
		n.lost = err
	}
	n.mu.Unlock()
	if apart {
		n.failGatheringsOf(err)
		n.failCallsTo(err)
	} else {
		n.failGatherings(err)
		n.failCalls(err)
	}
	n.flood(wordsFrame(kindLost, node, []byte(cause)), from)
	n.cfg.Handler.NodeLost(err)
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

// lostOf is why what these nodes have to do together does not come about, nil where
// none of them is lost.
func (n *Node) lostOf(nodes ...int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.without) == 0 {
		return nil
	}
	for _, i := range nodes {
		if err := n.without[i]; err != nil {
			return err
		}
	}
	return nil
}

// lostSome tells whether any node is lost.
func (n *Node) lostSome() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost != nil || len(n.without) > 0
}
