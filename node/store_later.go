package node

import (
	"sync"
	"time"

	"stepd/step"
)

// storeAgain is how long waits what has happened and could not be stored: the disk is full,
// or the spool does not answer, and nothing tells when that is over.
const storeAgain = time.Second

// storeLater calls store every storeAgain until it has no error, and then over. Nobody waits
// for it. Where noded stops before, over is told so: it is not stored.
func (n *Node) storeLater(store func() error, over func(stored bool)) {
	n.work.Go(func() {
		again := time.NewTicker(storeAgain)
		defer again.Stop()
		for {
			select {
			case <-n.stopping:
				over(false)
				return
			case <-again.C:
			}
			if store() == nil {
				over(true)
				return
			}
		}
	})
}

// endedStep is a step of this node, or a whole one of several nodes.
type endedStep interface{ record() *step.Record }

// unstored are the steps that have ended and whose results could not be stored yet.
type unstored struct {
	mu    sync.Mutex
	steps map[step.ID]endedStep // guarded by mu
}

// get returns nil where there is none.
func (u *unstored) get(id step.ID) endedStep {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.steps[id]
}

// add notes one; a whole step is noted in the place of its part.
func (u *unstored) add(id step.ID, s endedStep) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.steps == nil {
		u.steps = make(map[step.ID]endedStep)
	}
	u.steps[id] = s
}

// drop says that one is stored, or will never be.
func (u *unstored) drop(id step.ID, s endedStep) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.steps[id] == s {
		delete(u.steps, id)
	}
}
