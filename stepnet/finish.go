package stepnet

import (
	"context"
	"errors"
	"time"
)

// Finish says that the tasks of this node have ended, passes on the last that
// they wrote, and returns when the step is over on all nodes that are not lost:
// until then this node relays for the others. ctx's end is its error.
func (n *Node) Finish(ctx context.Context) error {
	n.mu.Lock()
	n.ended = true
	n.mu.Unlock()
	n.advance()
	n.wg.Go(func() {
		n.drainOutputs()
		n.drainWords()
		n.mu.Lock()
		n.done = true
		n.mu.Unlock()
		n.advance()
	})
	select {
	case <-n.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Hurry says that the step ends before its time: who has not connected by now is
// not waited for much longer.
func (n *Node) Hurry() {
	n.hurry.Do(func() {
		time.AfterFunc(n.lim.Hurry, func() {
			for _, l := range n.links() {
				if !l.connected() {
					l.fail(errors.New("it had not connected when the step was ended"))
				}
			}
		})
	})
}

// advance tells above what has become true: that all tasks below have ended, and
// that all they wrote was sent. Where nobody is above, the step is over then.
func (n *Node) advance() {
	n.mu.Lock()
	ended, done := n.ended, n.done
	for _, c := range n.children() {
		ended = ended && n.endedBelow[c]
		done = done && n.doneBelow[c]
	}
	tellEnded, tellDone := ended && !n.toldEnded, done && !n.toldDone
	n.toldEnded, n.toldDone = n.toldEnded || ended, n.toldDone || done
	top := n.up.isGone()
	n.mu.Unlock()
	if tellEnded && !top {
		n.up.push(plainFrame(kindEnded))
		if n.root() {
			n.wg.Go(n.watchDrain)
		}
	}
	if tellDone && !top {
		n.up.pushBulk(plainFrame(kindDone))
	}
	if done && top {
		n.finished()
	}
}

// watchDrain gives up a launcher that takes nothing any more, once the tasks have
// ended: a terminal that stands still must not hold the nodes for ever.
func (n *Node) watchDrain() {
	t := time.NewTicker(n.lim.Drain)
	defer t.Stop()
	moved := func() (sum uint64) {
		for _, w := range n.up.out {
			sum += w.moved()
		}
		return sum
	}
	for last := moved(); ; {
		select {
		case <-n.over:
			return
		case <-n.ctx.Done():
			return
		case <-t.C:
		}
		now := moved()
		if now == last {
			n.launcherGone("it took nothing of what the tasks had written for " + n.lim.Drain.String() + " after their end")
			return
		}
		last = now
	}
}

// finished says below that the step is over.
func (n *Node) finished() {
	n.mu.Lock()
	already := n.isOver
	n.isOver = true
	n.mu.Unlock()
	if already {
		return
	}
	n.toChildren(plainFrame(kindOver))
	close(n.over)
}
