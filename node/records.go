package node

import (
	"fmt"
	"slices"
	"time"

	"stepd/api/stepapi"
	"stepd/node/state"
	"stepd/step"
)

// handle takes one record of stepd's. It returns true for the result.
func (f *follower) handle(m *stepapi.Msg) (result bool) {
	f.log.Debugf("stepd says %q", m.Type)
	switch m.Type {
	case stepapi.TypeHello:
		defer f.meet()
		if m.Version != stepapi.Version {
			f.otherVersion(m.Version)
			return false
		}
		f.merge(m.Record)
	case stepapi.TypeState:
		f.merge(m.Record)
	case stepapi.TypeTaskExit:
		f.taskExit(m)
	case stepapi.TypeAsk:
		f.asked(m)
	case stepapi.TypeResult:
		if f.settled {
			f.send(&stepapi.Msg{Type: stepapi.TypeAck})
			return true
		}
		if m.Record == nil || !isFinal(m.Record.State) {
			f.log.Error("internal error: stepd sent a result that is not final")
			return false
		}
		if f.settle(m.Record) {
			f.send(&stepapi.Msg{Type: stepapi.TypeAck})
		}
		return true
	}
	return false
}

// otherVersion: a stepd that runs on from before an upgrade is followed to its end. One
// that this noded has started is another release's than this noded is, as are all that it
// would start.
func (f *follower) otherVersion(v int) {
	if !f.launched {
		f.log.Errorf("stepd speaks version %d of its protocol, noded %d: its end alone is followed", v, stepapi.Version)
		return
	}
	f.foreign = fmt.Sprintf("cannot launch with %q: it speaks version %d of the step protocol, and noded %d: restart noded, or install programs of one release", f.n.cfg.StepdPath, v, stepapi.Version)
	f.n.health.Drain(f.foreign)
	if err := f.n.killStepd(f.proc); err != nil {
		f.log.Errorf("cannot kill stepd: %v", err)
	}
}

// ending reports whether the step's tasks have ended.
func (f *follower) ending() bool { return f.settled || f.record().State == step.Completing }

// merge takes over what stepd has told. A final record comes with the result only.
func (f *follower) merge(rec *step.Record) {
	if rec == nil || f.settled || rec.State.Final() {
		return
	}
	f.update(func(own *step.Record) { own.Merge(rec) })
	if rec.State != step.Pending && rec.State != step.Starting {
		f.movedOff()
	}
}

func (f *follower) taskExit(m *stepapi.Msg) {
	if m.Status == nil {
		return
	}
	f.update(func(own *step.Record) {
		for i := range own.Tasks {
			// A record may have reported the end before, and where a task failed.
			if own.Tasks[i].Status == nil && slices.Contains(m.Ranks, own.Tasks[i].Rank) {
				own.Tasks[i].End(*m.Status)
			}
		}
	})
}

// settle makes rec's end the step's end, and stores it. From then on the
// step's CPUs are free. It returns false where the record could not be stored:
// then stepd gets no Ack and leaves its result file for the next noded.
func (f *follower) settle(rec *step.Record) (stored bool) {
	endExtern(rec)
	if rec.Ended == nil {
		now := time.Now()
		rec.Ended = &now
	}
	f.update(func(own *step.Record) { own.Merge(rec) })
	f.settled = true
	f.movedOff()
	// Before any client gets the end, and asks for the next step.
	if rec.Drain != "" {
		f.n.health.Drain(rec.Drain)
	}
	if rec.SurvivorsTotal > 0 {
		f.n.health.Hold(f.record())
	}
	f.n.health.Plugins.Step(rec)
	forgotten, err := f.n.store.Finish(f.record())
	if err = state.LogOwed(err, f.log); err != nil {
		f.log.Errorf("%v: it is tried again", err)
	}
	f.n.forget(forgotten)
	f.n.keepOutput(f.id, rec.UID)
	others, idle := f.n.reg.settle(f)
	for _, other := range others {
		f.n.cancelLater(other, jobEnded)
	}
	if idle && !f.n.scripts.OwesEpilog() {
		f.n.reg.free(f.job)
	}
	f.log.WithField("state", rec.State).WithField("reason", rec.Reason).Info("step ended")
	return err == nil
}
