package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"stepd/node/health"
	"stepd/node/scripts"
	"stepd/node/spool"
	"stepd/node/state"
	"stepd/step"
	"stepd/step/launch"
)

// finish comes after stepd's exit: it finds the result, or makes one that says
// what happened, and leaves nothing of the step behind.
func (f *follower) finish() {
	conclude(f, cmp.Or(f.foreign, f.proc.Ending())) // Ending reaps
}

// conclude settles the step, where that is not done, for this end of stepd's, and cleans up.
func conclude(f *follower, ending string) {
	state := step.Failed
	if f.unanswered.state != "" {
		ending, state = f.unanswered.reason, f.unanswered.state
	}
	if !f.is(stepSettled) {
		f.settleWithout(ending, state)
	}
	f.cleanup()
}

// settleWithout settles a step whose stepd sent no result: it may have left it
// in a file, because there was no noded to take it, which is reported; else it died.
func (f *follower) settleWithout(reason string, state step.State) (left bool) {
	rec, err := f.n.spool.TakeResult(f.id)
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
	now := time.Now()
	heard := now
	if f.unanswered.state != "" { // it may have stood still since its tasks began
		heard = rec.Submitted
	}
	if err := f.n.spool.LoseTasks(rec, heard); err != nil {
		f.log.Warnf("%v", err)
	}
	deadRecord(rec, reason, state, now)
	rec.ExitCode = &code
	if err := f.n.spool.LogEnd(rec); err != nil {
		f.log.Warnf("%v", err)
	}
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
}

// prologExitCode is the exit code of a step whose job's prolog has failed, as
// measured with srun (spank-behaviour §5).
const prologExitCode = 182

// fail ends a step whose stepd was not started.
func (f *follower) fail(cause error) {
	state, code := step.Failed, 1
	_, prolog := errors.AsType[scripts.PrologError](cause)
	_, fault := errors.AsType[*launch.FaultError](cause)
	_, cancelled := errors.AsType[errCancelled](cause)
	switch {
	case cancelled:
		state = step.Cancelled
	case (prolog || fault) && f.n.gate.Drain().Drained: // the line of the drain has the cause
		f.log.Infof("cannot start the step: %v", cause)
	default:
		f.log.Errorf("cannot start the step: %v", cause)
	}
	if prolog {
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
		f.log.Errorf("%v", err)
		if !left {
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
		f.n.scripts.Unkillable(f.job.scripts, f.job.facts(&f.n.cfg), f.n.cfg.UnkillableProgram, &held.Rec, health.Text(held))
	}
}

func (f *follower) removeSocket() {
	path := f.n.spool.StepsDir() + "/" + f.n.spool.SocketName(f.id)
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.log.Warnf("cannot remove socket: %v", err)
	}
}

// cleanup leaves nothing of a settled step whose stepd has ended. It is the
// only place that takes the step out of the registry.
func (f *follower) cleanup() {
	f.removeSocket()
	f.endPlace()
	// The folder of the step's PMIx server, which stepd removes unless it was killed. No process
	// of the step writes there any more, and what a user has put there goes beneath a descriptor.
	if err := spool.RemoveBelow(f.n.spool.PMIxDir(), f.id.Key()); err != nil {
		f.log.Warnf("%v", err)
	}
	// Where the spool does not answer, the next noded removes it.
	err := f.n.spool.Do(func() error { return os.Remove(f.n.spool.Result(f.id)) })
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		f.log.Warnf("cannot remove result file: %v", err)
	}
	j := f.n.reg.remove(f)
	if j != nil && f.n.scripts.OwesEpilog(j.scripts) { // the epilog is the job's, and not its last step's
		defer f.n.work.Go(func() { f.n.endJob(j) })
	} else {
		f.n.endJob(j)
	}
	close(f.ended)
	measure(f)
}

// goOnWithout ends a step that has its result, or whose stepd did not answer, where SIGKILL does
// not end stepd: cgroup v1's freezer keeps it, or a pipe of its client's stands in the kernel for as long as a page of the client's memory
// does not come (a file of a FUSE server that is gone, userfaultfd(2)), and so does
// a process that writes to it or closes it. The step's place is then held as for any process
// that does not die, and the job goes on.
func (f *follower) goOnWithout() {
	ending := fmt.Sprintf("stepd (pid %d) still exists %v after SIGKILL", f.proc.PID, f.n.leaveMax)
	f.log.Errorf("%s: the step ends without it", ending)
	p := f.proc
	go func() { // ends with stepd, or with us: process 1 then reaps it
		if p.Wait(context.Background()) == nil {
			_ = p.Reap() // the step has its end
		}
		p.Close()
	}()
	conclude(f, ending)
}
