package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"stepd/eventlog"
	"stepd/node/health"
	"stepd/node/scripts"
	"stepd/node/state"
	"stepd/step"
)

// finish comes after stepd's exit: it finds the result, or makes one that says
// what happened, and leaves nothing of the step behind.
func (f *follower) finish() {
	ending := f.proc.Ending() // reaps
	ending = cmp.Or(f.foreign, ending)
	if !f.is(stepSettled) {
		f.settleWithout(ending, step.Failed)
	}
	f.cleanup()
}

// settleWithout settles a step whose stepd sent no result: it may have left it
// in a file, because there was no noded to take it, which is reported; else it died.
func (f *follower) settleWithout(reason string, state step.State) (left bool) {
	var rec *step.Record
	err := f.n.spool.do(func() (err error) {
		rec, err = readResult(f.n.files.result(f.id), f.id)
		return err
	})
	if err == nil {
		f.settle(rec)
		return true
	}
	if !errors.Is(err, os.ErrNotExist) {
		f.log.Warnf("%v", err)
	}
	f.log.Errorf("%s: killing the rest of the step", reason)
	f.die(reason, state)
	return false
}

// die kills what is left of the step and settles it: no other process knows
// the ends of its tasks. A batch job is lost with its stepd, as Slurm has it.
func (f *follower) die(reason string, state step.State) {
	if state == step.Failed && f.id.Step == step.BatchStep {
		state = step.NodeFail
	}
	f.update(func(rec *step.Record) { rec.StepdLost = true })
	f.dieWith(reason, state, 1)
}

func (f *follower) dieWith(reason string, state step.State, code int) {
	// No new client may connect to a socket that will not be served.
	f.removeSocket()
	usage := f.leftUsage()
	rec := f.record()
	left, err := f.n.health.Kill(rec)
	rec.Usage = usage
	if err != nil {
		if !left { // else Hold says it
			f.log.Errorf("%v", err)
		}
		reason += "; " + err.Error()
	}
	deadRecord(rec, reason, state, time.Now())
	rec.ExitCode = &code
	f.logEnd(rec)
	f.settle(rec)
}

// leftUsage is what the step's cgroups tell before they are removed; nil where
// they tell nothing.
func (f *follower) leftUsage() *step.StepUsage {
	if f.n.cfg.LeftUsage == nil {
		return nil
	}
	usage, err := f.n.cfg.LeftUsage(f.record())
	if err != nil {
		f.log.Warnf("cannot tell all that the step has used: %v", err)
	}
	return usage
}

// deadRecord makes rec the record of a step whose end was not seen. Its tasks
// were killed, but how each ended is not known, and is not made up.
func deadRecord(rec *step.Record, reason string, state step.State, now time.Time) {
	rec.State, rec.Reason, rec.ExitCode, rec.Signal, rec.Ended = state, reason, new(1), nil, &now
	for i := range rec.Tasks {
		switch t := &rec.Tasks[i]; t.State {
		case step.TaskRunning:
			t.State = step.TaskExited
		case step.TaskPending, step.TaskStarting:
			t.State = step.TaskFailed
		}
	}
}

// logEnd writes the lines that stepd can no longer write.
func (f *follower) logEnd(rec *step.Record) {
	end := *rec // this call's, which may last longer than its caller waits
	err := f.n.spool.do(func() error { return f.n.files.logEnd(&end, time.Now()) })
	if err != nil {
		f.log.Warnf("%v", err)
	}
}

func (l layout) logEnd(rec *step.Record, now time.Time) error {
	log, err := l.open(l.events(rec.ID), os.O_WRONLY|os.O_APPEND)
	if err != nil {
		return fmt.Errorf("cannot open event log: %w", err)
	}
	if rec.StepdPID != 0 {
		// Its last line may have no end.
		if _, err = log.WriteString("\n"); err == nil {
			err = writeEvents(log, eventlog.Event{Time: now, Event: eventlog.EventKill, Text: rec.Reason})
		}
	}
	if err == nil && rec.Usage != nil {
		err = writeEvents(log, eventlog.Event{Time: now, Event: eventlog.EventUsage, Usage: rec.Usage})
	}
	if err == nil {
		err = writeEvents(log,
			eventlog.Event{Time: now, Event: eventlog.EventState, State: rec.State, Text: rec.Reason},
			eventlog.Event{Time: now, Event: eventlog.EventEnd, State: rec.State},
		)
	}
	return errors.Join(err, log.Close())
}

// prologExitCode is the exit code of a step whose job's prolog has failed, as
// measured with srun (spank-behaviour §5).
const prologExitCode = 182

// fail ends a step whose stepd was not started.
func (f *follower) fail(cause error) {
	state, code := step.Failed, 1
	if _, ok := errors.AsType[errCancelled](cause); ok {
		state = step.Cancelled
	} else {
		f.log.Errorf("cannot start the step: %v", cause)
	}
	if _, ok := errors.AsType[scripts.PrologError](cause); ok {
		code = prologExitCode
	}
	f.dieWith(cause.Error(), state, code)
	f.cleanup()
}

// endPlace ends what is left of the step, or leaves it to Health where it does not die.
func (f *follower) endPlace() {
	h := f.n.health
	if !h.Holds(f.id) {
		rec := f.record()
		left, err := h.Kill(rec)
		if err == nil {
			return
		}
		if !left {
			f.log.Errorf("%v", err)
			return
		}
		h.Hold(rec)
	}
	var held *state.Held
	if f.n.cfg.UnkillableProgram != "" {
		held = h.ClaimProgram(f.id)
	}
	h.AwaitEmpty(f.id) // the drain ends with the processes, not with the program
	if held != nil {
		f.n.scripts.Unkillable(f.job.scripts, f.job.facts(f.n.cfg.Gres), f.n.cfg.UnkillableProgram, &held.Rec, health.Text(held))
	}
}

func (f *follower) removeSocket() {
	path := f.n.files.stepsDir() + "/" + f.n.files.socketName(f.id)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.log.Warnf("cannot remove socket: %v", err)
	}
}

// removePMIx removes the folder of the step's PMIx server, which stepd removes
// unless it was killed. What a user has put there goes beneath a descriptor.
func (f *follower) removePMIx() {
	if err := removeBelow(f.n.files.pmixDir(), f.id.String()); err != nil {
		f.log.Warnf("%v", err)
	}
}

// removeBelow removes name and all below it from a directory of ours, following no
// link; a missing name, or directory, is fine.
func removeBelow(dir, name string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot open directory: %w", err)
	}
	defer root.Close()
	if err := root.RemoveAll(name); err != nil {
		return fmt.Errorf("cannot remove %q: %w", filepath.Join(dir, name), err)
	}
	return nil
}

// cleanup leaves nothing of a settled step whose stepd has ended. It is the
// only place that takes the step out of the registry.
func (f *follower) cleanup() {
	f.removeSocket()
	f.endPlace()
	f.removePMIx() // no process of the step writes there any more
	// Where the spool does not answer, the next noded removes it.
	err := f.n.spool.do(func() error { return os.Remove(f.n.files.result(f.id)) })
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.log.Warnf("cannot remove result file: %v", err)
	}
	j := f.n.reg.remove(f)
	if j == nil || !f.n.scripts.OwesEpilog() {
		f.n.endJob(j)
		close(f.ended)
		f.measure()
		return
	}
	// The step has ended; the epilog is its job's.
	close(f.ended)
	f.measure()
	f.n.work.Go(func() { f.n.endJob(j) })
}

// goOnWithout ends a step that has its result and whose stepd SIGKILL does not end: a
// pipe of its client's stands in the kernel for as long as a page of the client's memory
// does not come (a file of a FUSE server that is gone, userfaultfd(2)), and so does
// a process that writes to it or closes it. The step's place is then held as for any process
// that does not die, and the job goes on.
func (f *follower) goOnWithout() {
	f.log.Errorf("stepd (pid %d) has given its result and still exists %v after SIGKILL: the step ends without it", f.proc.PID, f.n.leaveMax)
	p := f.proc
	go func() { // ends with stepd, or with us: process 1 then reaps it
		if p.Wait(context.Background()) == nil {
			_ = p.Reap() // the step has its result
		}
		p.Close()
	}()
	f.cleanup()
}
