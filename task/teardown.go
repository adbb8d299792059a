package task

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"stepd/eventlog"
	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// teardown ends the step on every way out of it: the rest of its processes, the
// plugins' exit hooks, then everything that the stages have made, the last first.
type teardown struct {
	*Step
	// told is the error of the host's death, which hostDied has reported.
	told error
}

// run ends a step whose launch, or loop, has ended with err.
func (t *teardown) run(err error) {
	t.progress.settle()
	t.suspension.end()
	t.settle(err)
	t.awaitSpawned(err)
	t.ledger.setState(step.Completing)
	t.part("kill", t.killRest)
	t.part("usage", func() error { t.d.Accounting.Finish(); return nil }) // which goes with the tasks' cgroups
	if t.plugins.owed > 0 {
		t.part("task_post_step", t.plugins.postStep)
	}
	t.reportMoreOOM() // all kills are known now
	t.part("exit", t.exitHooks)
	for _, u := range slices.Backward(t.undo) {
		if u.name == "log" {
			t.settleTasks() // while the board still says where they were
		}
		t.part("undo "+u.name, u.do)
	}
	if len(t.undo) == 0 { // it was cancelled before its first stage
		t.settleTasks()
	}
	t.clientStreams.close()
	if t.d.Streams.Used() {
		t.part("drain", t.drainStreams)
	}
	// What others see of the output ends when all of it has passed.
	if t.d.Output.Used() {
		t.part("output", func() error { t.d.Output.Drain(); return nil })
	} else {
		t.d.Output.Drain()
	}
	t.settleUsage()
	t.conclude()
}

// part runs one part of the end; what fails there is reported and does not
// keep the other parts from running.
func (t *teardown) part(name string, do func() error) {
	start := t.d.Now()
	err := do()
	t.messages.span(name, start, err)
	if err == nil || isGivenUp(err) { // which was reported already
		return
	}
	if !errors.Is(err, t.told) {
		t.messages.log(err.Error())
	}
	t.ledger.noteReason(err.Error())
}

// settle makes the error of a launch or of the running step the cause of its end, unless
// it has one.
func (t *teardown) settle(err error) {
	if err == nil || isGivenUp(err) {
		return // the tasks' own ends, and that some have none, are the step's
	}
	if _, ended := errors.AsType[*cause](err); ended {
		return
	}
	b := launchBlame(err, t.plan.Spec)
	c := cause{kind: byFailure, reason: err.Error(), code: b.code, ends: true}
	if b.drain {
		c.drain = drainReason(err, t.plan.Spec)
	}
	if t.end(c) {
		t.ledger.noteReason(c.reason) // what fails while the step is taken back comes after it
	}
}

// killRest ends what the tasks have left behind, double-forked daemons
// included; tasks that wait at the gate see its end of file.
func (t *teardown) killRest() error {
	t.gate.close()
	if t.host.Host == nil || t.killing.givenUp {
		return nil
	}
	alone, err := t.host.isAlone()
	if err != nil {
		return err
	}
	if alone {
		t.killer.signalEscaped(syscall.SIGKILL)
		return nil
	}
	if !t.gate.opened {
		t.host.evict() // meanwhile tasks at the gate end by themselves: none of them is to be called killed
	}
	return t.killer.kill()
}

// exitHooks calls slurm_spank_exit where the stack was initialised, then fini(), and lets
// the host end.
func (t *teardown) exitHooks() error {
	if !t.host.is(hostInitialised) && !t.host.is(hostSetUp) {
		return nil
	}
	defer t.host.guard()()
	began := linux.TicksSinceBoot()
	err := t.host.Exit()
	if hook, ok := errors.AsType[*launch.HookError](err); ok && hook.RC != nil {
		// Slurm: the step's end is not changed (failure table, slurm_spank_exit).
		t.messages.log("spank_fini failed: " + err.Error())
		t.host.strictFailure(err)
		err = nil
	}
	if err == nil {
		<-t.host.gone // what destructors and atexit handlers do is bounded as hooks are
		if t.host.end() != 0 {
			err = launch.ErrHostGone
		}
	}
	if errors.Is(err, launch.ErrHostGone) {
		if t.host.endedAsAsked() {
			return nil
		}
		err = t.hostDied()
		if hook, ok := errors.AsType[*launch.HookError](err); ok && hook.Unloading() {
			t.host.strictFailure(err)
			return nil // all of the step has ended, and how
		}
		t.settle(err)
		t.told = err
	}
	if err == nil {
		t.left.since = began
	}
	return err
}

// exitHelpers are the processes that plugins have started in slurm_spank_exit and not
// waited for. They outlive slurmstepd in Slurm; here they have ExitGrace (stepd.conf) from
// the step's end on, which does not wait for them.
type exitHelpers struct {
	since uint64 // when the exit hooks were called, in clock ticks since boot; 0: they were not, or have crashed
	kept  bool   // processes are left
}

// keepHelpers ends what is left of the step but exitHelpers, and reports whether there
// are any.
func (s *Step) keepHelpers() (kept bool, err error) {
	if s.left.since == 0 || s.plan.Spec.Spank.ExitGraceS == 0 || s.killing.givenUp {
		return false, nil
	}
	n, err := s.d.Tracker.KeepHelpers(s.left.since)
	s.left.kept = n > 0
	return s.left.kept, err
}

// EndHelpers returns when nothing is left of the step that Run has ended: exitHelpers end
// within ExitGrace, or with ctx, or are killed. It is called once, when the step's end was
// reported.
func (s *Step) EndHelpers(ctx context.Context) error {
	if !s.left.kept {
		return nil
	}
	select {
	case <-s.d.NoChildren():
	case <-time.After(time.Duration(s.plan.Spec.Spank.ExitGraceS) * time.Second):
	case <-ctx.Done():
	}
	return s.destroy()
}

// destroy ends all processes of the step and takes their places back.
func (s *Step) destroy() error {
	ctx, cancel := s.killing.context()
	defer cancel()
	return s.killing.spent(s.d.Tracker.Destroy(ctx))
}

// settleTasks gives every task that was forked an end: all of them are dead by
// now. The statuses that the host left behind are with the reaper;
// one that is not known stays unknown.
func (t *teardown) settleTasks() {
	if !t.host.is(hostDead) && t.gate.opened && !t.killing.givenUp {
		return // the host has reported all
	}
	for e, ok := t.tasks.orphan(); ok; e, ok = t.tasks.orphan() {
		if was := t.tasks.list[e.LocalID].phase; was != taskEnded {
			t.move(e.LocalID, taskEnded)
			t.recordEnd(e, was)
		}
	}
	t.ledger.write(func(rec *step.Record) {
		for i := range rec.Tasks {
			switch task := &rec.Tasks[i]; task.State {
			case step.TaskRunning:
				if !t.killing.givenUp { // else it may be one that does not die
					task.State = step.TaskExited
				}
			case step.TaskStarting, step.TaskPending:
				task.State = step.TaskFailed
				if i < len(t.tasks.list) && t.host.Host != nil {
					task.Stage = t.host.Where(i).Stage // one that was not forked has none
				}
			}
		}
	})
}

// conclude makes the record final. The host's log channel has ended: no failure of a task
// is missing.
func (t *teardown) conclude() {
	now := t.d.Now()
	t.ledger.addFailures()
	var v verdict
	var events []eventlog.Event
	floor := t.ledger.leastCode()
	t.ledger.write(func(rec *step.Record) {
		rec.Ended = &now
		v = t.verdict(rec, floor)
		rec.ExitCode, rec.Signal = &v.code, v.signal
		events = t.progress.conclude(rec, v.state)
	})
	for _, e := range events {
		t.messages.event(e)
	}
	t.ledger.setState(v.state)
	t.messages.event(eventlog.Event{Time: now, Event: eventlog.EventEnd, State: v.state, RC: &v.code, Text: t.Record().Reason})
}
