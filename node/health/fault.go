package health

import (
	"time"

	"stepd/internal/child"
	"stepd/node/state"
)

// lookAgain is how often a node that cannot start steps is tried again: neither room in a file
// system nor a file that is put back is reported by the kernel.
const lookAgain = time.Second

// Fault drains the node because it cannot start steps, which would all fail one after the other,
// until it can. A node that is drained already stays so for its own reason.
func (h *Health) Fault(reason string) {
	reason = child.Message(reason)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cfg.Gate.Drain().Drained {
		return
	}
	h.cfg.Log.Errorf("draining the node until it can start steps: %s", reason)
	h.noteLocked(state.Drain{Drained: true, Owner: state.OwnerFault, Reason: reason})
	h.cfg.Go(h.awaitAble)
}

// awaitAble ends the drain of Fault when the node can start steps, unless an administrator has. Only
// one call at a time does so.
func (h *Health) awaitAble() {
	h.mu.Lock()
	begun := h.trying
	h.trying = true
	h.mu.Unlock()
	if begun {
		return
	}
	again := time.NewTicker(lookAgain)
	defer again.Stop()
	for last := ""; ; {
		select {
		case <-again.C:
		case <-h.cfg.Stopping: // the next noded goes on
			return
		}
		err := h.cfg.Able()
		h.mu.Lock()
		over := h.cfg.Gate.Drain().Owner != state.OwnerFault
		if err == nil && !over {
			h.noteLocked(state.Drain{})
			h.cfg.Log.Info("the node can start steps: it is not drained any more")
			over = true
		}
		h.trying = !over
		h.mu.Unlock()
		if err != nil && !over && err.Error() != last {
			last = err.Error()
			h.cfg.Log.Warnf("the node cannot start steps yet: %s", last)
		}
		if over {
			return
		}
	}
}
