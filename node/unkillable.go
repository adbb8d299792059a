package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/node/child"
	"stepd/node/scripts"
	"stepd/node/state"
	"stepd/step"
	"stepd/step/launch"
)

// heldText is why the node is drained for it, in Slurm's words and ours.
func heldText(h *state.Held) string {
	left := launch.SurvivorsError{Survivors: h.Rec.Survivors, Total: h.Rec.SurvivorsTotal}
	return child.Message(fmt.Sprintf("step %s: %s", h.Rec.ID.Name(), left.Left()))
}

// drainKillFailed begins the reason of a drain, as Slurm has it.
const drainKillFailed = "Kill task failed: "

// heldSteps are those by their number. The lock is Node.draining's: what is held
// and why the node is drained change together.
type heldSteps struct {
	steps   map[step.ID]*state.Held // guarded by Node.draining
	awaited map[step.ID]bool        // guarded by Node.draining
}

// hold notes that processes of a step are left, and drains the node for as long
// as they are. The wait itself begins with awaitEmpty, when stepd has ended.
func (n *Node) hold(rec *step.Record) {
	h := &state.Held{Rec: *rec, Since: time.Now()}
	h.Rec.Command = nil
	if h.Rec.BootID == "" {
		h.Rec.BootID = n.boot
	}
	n.draining.Lock()
	defer n.draining.Unlock()
	if old := n.held.steps[rec.ID]; old != nil {
		h.Since, h.Waived, h.Programmed = old.Since, old.Waived, old.Programmed
	}
	if n.held.steps[rec.ID] == nil {
		n.cfg.Meter.Leak(LeakProcess)
	}
	n.held.steps[rec.ID] = h
	n.log.WithField("step", rec.ID.String()).Errorf("%s", heldText(h))
	n.storeHeld(rec.ID)
	switch d := n.gate.drain(); {
	case !d.Drained, d.Owner == state.OwnerHeld:
		n.drainForHeld()
	default:
		n.log.Warnf("the node is drained already (%s); now there is also: %s", d.Reason, heldText(h))
	}
}

// storeHeld stores what is known of a step. The caller holds draining.
func (n *Node) storeHeld(id step.ID) {
	var err error
	if h := n.held.steps[id]; h != nil {
		err = n.store.PutHeld(h)
	} else {
		err = n.store.DropHeld(id)
	}
	if err != nil {
		n.log.Errorf("%v: it is tried again", err)
	}
}

// drainForHeld makes the drain say what is held, or ends it where nothing is
// that it is for. The caller holds draining, and the drain is its to change.
func (n *Node) drainForHeld() {
	var texts []string
	for _, h := range n.heldList() {
		if !h.Waived {
			texts = append(texts, heldText(h))
		}
	}
	d := state.Drain{}
	if len(texts) > 0 {
		d = state.Drain{Drained: true, Owner: state.OwnerHeld, Reason: drainKillFailed + strings.Join(texts, "; ")}
	}
	n.noteDrain(d)
}

// heldList is all that is held, by number; the caller holds draining.
func (n *Node) heldList() []*state.Held {
	list := make([]*state.Held, 0, len(n.held.steps))
	for _, h := range n.held.steps {
		list = append(list, h)
	}
	slices.SortFunc(list, func(a, b *state.Held) int {
		return cmp.Or(cmp.Compare(a.Rec.ID.Job, b.Rec.ID.Job), cmp.Compare(a.Rec.ID.Step, b.Rec.ID.Step))
	})
	return list
}

// holds reports whether something is left of the step.
func (n *Node) holds(id step.ID) bool {
	n.draining.Lock()
	defer n.draining.Unlock()
	return n.held.steps[id] != nil
}

// holdsAny reports whether anything is left of any step.
func (n *Node) holdsAny() bool {
	n.draining.Lock()
	defer n.draining.Unlock()
	return len(n.held.steps) > 0
}

// holdsJob reports whether something is left of one of the job's steps.
func (n *Node) holdsJob(job uint32) bool {
	n.draining.Lock()
	defer n.draining.Unlock()
	for id := range n.held.steps {
		if id.Job == job {
			return true
		}
	}
	return false
}

// waive says that an administrator has resumed the node in spite of what is
// held: the wait goes on, and its end changes nothing. The caller holds draining.
func (n *Node) waive() {
	for _, h := range n.heldList() {
		if h.Waived {
			continue
		}
		h.Waived = true
		n.storeHeld(h.Rec.ID)
	}
}

// awaitEmpty waits until the kernel says that nothing is left of a held step,
// removes its place and ends the drain that was for it. It is started once.
func (n *Node) awaitEmpty(id step.ID) {
	n.draining.Lock()
	h, begun := n.held.steps[id], n.held.awaited[id]
	n.held.awaited[id] = true
	n.draining.Unlock()
	if begun || h == nil {
		return
	}
	n.work.Go(func() {
		log := n.log.WithField("step", id.String())
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		go func() { // ends with ctx, which ends with this call
			select {
			case <-n.stopping:
				cancel(scripts.ErrStopping)
			case <-ctx.Done():
			}
		}()
		err := n.cfg.Tracker.EndStep(ctx, &h.Rec)
		if ctx.Err() != nil && err != nil {
			return // the next noded waits
		}
		if err != nil {
			log.Errorf("cannot wait for the end of what is left: %v (the next start of noded tries again)", err)
			return
		}
		n.release(h)
	})
}

// release forgets a held step of which nothing is left.
func (n *Node) release(h *state.Held) {
	id := h.Rec.ID
	log := n.log.WithField("step", id.String())
	n.draining.Lock()
	delete(n.held.steps, id)
	delete(n.held.awaited, id)
	n.storeHeld(id)
	log.Infof("nothing is left of the step any more, %v after it was given up", time.Since(h.Since).Round(time.Millisecond))
	if d := n.gate.drain(); d.Drained && d.Owner == state.OwnerHeld {
		if n.drainForHeld(); !n.gate.drain().Drained {
			log.Info("the node is not drained any more")
		}
	}
	n.draining.Unlock()
	if n.reg.job(id.Job) == nil && !n.holdsJob(id.Job) { // else their end does it
		ctx, cancel := n.unkillable()
		defer cancel()
		// What it has kept from being removed at the job's end.
		if err := n.cfg.Containers.Delete(ctx, id.Job); err != nil {
			log.Errorf("%v", err)
		}
		n.endPlace(id.Job, log)
	}
}

// endPlace removes the place of a job of which nothing is left.
func (n *Node) endPlace(job uint32, log *logrus.Entry) {
	if err := n.cfg.Tracker.EndJob(job); err != nil {
		log.Errorf("%v", err)
	}
}

// claimProgram returns the held step for which the site's UnkillableStepProgram
// is to be run now, once; nil is none.
func (n *Node) claimProgram(id step.ID) *state.Held {
	n.draining.Lock()
	defer n.draining.Unlock()
	h := n.held.steps[id]
	if n.cfg.UnkillableProgram == "" || h == nil || h.Programmed {
		return nil
	}
	h.Programmed = true
	n.storeHeld(id)
	return h
}

// recoverHeld waits again for what an earlier noded waited for. Steps that run
// are their followers' to end.
func (n *Node) recoverHeld(running map[step.ID]bool) {
	n.draining.Lock()
	list := n.heldList()
	n.draining.Unlock()
	for _, h := range list {
		if !running[h.Rec.ID] {
			n.awaitEmpty(h.Rec.ID)
		}
	}
}

// unkillable bounds the wait for what was killed.
func (n *Node) unkillable() (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.Background(), n.cfg.UnkillableTimeout,
		fmt.Errorf("still there %v after SIGKILL (UnkillableStepTimeout)", n.cfg.UnkillableTimeout))
}

// survivorsOf is who is left where err says so.
func survivorsOf(err error, rec *step.Record) bool {
	left, ok := errors.AsType[*launch.SurvivorsError](err)
	if ok {
		rec.Survivors, rec.SurvivorsTotal = left.Survivors, left.Total
	}
	return ok
}

func (n *Node) heldDocs() []api.NodeUnkillable {
	n.draining.Lock()
	defer n.draining.Unlock()
	docs := []api.NodeUnkillable{}
	for _, h := range n.heldList() {
		docs = append(docs, api.NodeUnkillable{ID: h.Rec.ID, Since: h.Since, Text: heldText(h), Processes: h.Rec.Survivors, Total: h.Rec.SurvivorsTotal})
	}
	return docs
}
