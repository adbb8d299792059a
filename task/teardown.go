package task

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"stepd/step"
)

// finish ends the step on every way out of it: the rest of its processes, the
// plugins' exit hooks, then everything that the stages have made, the last first.
func (s *Step) finish(err error) {
	s.settleProgress()
	s.endSuspension()
	s.settle(err)
	s.awaitSpawned(err)
	s.setState(step.Completing)
	s.endStage("kill", s.killRest)
	s.endStage("usage", s.finishAccounting)
	if s.plugged > 0 {
		s.endStage("task_post_step", s.postStep)
	}
	s.sayMoreOOM() // all kills are known now
	s.endStage("exit", s.exitHooks)
	for i := len(s.undo) - 1; i >= 0; i-- {
		if s.undo[i].name == "log" {
			s.settleTasks() // while the board is there to tell where they were
		}
		s.endStage("undo "+s.undo[i].name, s.undo[i].do)
	}
	if len(s.undo) == 0 { // it was cancelled before its first stage
		s.settleTasks()
	}
	s.closeAttached()
	if s.d.Streams != nil && s.d.Streams.Used() {
		s.endStage("drain", s.drainStreams)
	}
	s.drainOutput()
	s.settleUsage()
	s.conclude()
}

// endStage runs one part of the end; what fails there is told and does not
// keep the other parts from running.
func (s *Step) endStage(name string, do func() error) {
	start := s.d.Now()
	err := do()
	end := s.d.Now()
	us := end.Sub(start).Microseconds()
	ev := step.Event{Time: end, Event: step.EventStageEnd, Phase: name, DurUS: &us}
	if err != nil {
		ev.Text = err.Error()
		if !isGivenUp(err) { // which was told already
			s.d.Audience.Log(step.LogError, err.Error())
			s.mu.Lock()
			s.noteReason(err.Error())
			s.mu.Unlock()
		}
	}
	s.d.Audience.Event(ev)
}

// settle makes the error of a launch or of the running step the cause of its end, unless
// it has one.
func (s *Step) settle(err error) {
	if err == nil || isGivenUp(err) {
		return // the tasks' own ends, and that some have none, are the step's
	}
	if _, ended := errors.AsType[*cause](err); ended {
		return
	}
	v := launchVerdict(err, s.plan.Spec)
	c := cause{kind: byFailure, reason: err.Error(), code: v.code, ends: true}
	if v.drain {
		c.drain = drainReason(err, s.plan.Spec)
	}
	if s.end(c) {
		s.mu.Lock()
		s.noteReason(c.reason) // what fails while the step is taken back comes after it
		s.mu.Unlock()
	}
}

// killRest ends what the tasks have left behind, double-forked daemons
// included; tasks that wait at the gate see its end of file.
func (s *Step) killRest() error {
	s.closeGate()
	if s.host == nil || s.given() {
		return nil
	}
	pids, err := s.d.Tracker.PIDs()
	if err != nil {
		return err
	}
	// A short step's host is still among them: nothing is left to kill, and it
	// need not be moved.
	pids = slices.DeleteFunc(pids, func(pid int) bool { return pid == s.host.PID() })
	if len(pids) == 0 {
		s.signalEscaped(syscall.SIGKILL)
		return nil
	}
	return s.killTasks()
}

// exitHooks calls slurm_spank_exit where the stack was initialised, and lets
// the host end.
func (s *Step) exitHooks() error {
	if s.host == nil || s.hostDead || s.hostBusy || !s.initDone {
		return nil
	}
	defer s.guard()()
	err := s.host.Exit()
	var hook *step.HookError
	if errors.As(err, &hook) && hook.RC != nil {
		// Slurm: the step's end is not changed (failure table, slurm_spank_exit).
		s.d.Audience.Log(step.LogError, "spank_fini failed: "+err.Error())
		s.strictFailure(err)
		err = nil
	}
	if errors.Is(err, step.ErrHostGone) {
		if s.endedAsAsked() {
			return nil
		}
		err = s.hostDied()
		s.settle(err)
	}
	return err
}

// endedAsAsked tells whether the host has done all that exit asks of it and did
// not say so, since a plugin had closed its channel.
func (s *Step) endedAsAsked() bool {
	t := time.NewTimer(dyingTime)
	defer t.Stop()
	select {
	case <-s.hostGone:
		return s.hostStatus() == 0 && !s.host.Where(-1).InHook()
	case <-t.C:
		return false
	}
}

// settleTasks gives every task that was forked an end: all of them are dead by
// now. The statuses of those that the host left behind are with the reaper;
// one that nobody knows stays unknown.
func (s *Step) settleTasks() {
	if !s.hostDead && s.gateOpen {
		return // the host has told all
	}
	for range len(s.tasks) {
		select {
		case e := <-s.orphans:
			s.tasks[e.LocalID].ended = true
			s.recordEnd(e)
			continue
		default:
		}
		break
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.rec.Tasks {
		switch t := &s.rec.Tasks[i]; t.State {
		case step.TaskRunning:
			if s.given() {
				continue // it may be one of those that do not die
			}
			t.State = step.TaskExited
		case step.TaskStarting, step.TaskPending:
			t.State = step.TaskFailed
		}
	}
}

// conclude makes the record final.
func (s *Step) conclude() {
	now := s.d.Now()
	s.mu.Lock()
	rec := &s.rec
	s.addFailures()
	rec.Ended = &now
	state, code, signal := s.verdict()
	rec.ExitCode, rec.Signal = &code, signal
	events := s.tellProgress(state)
	s.mu.Unlock()
	for _, e := range events {
		s.d.Audience.Event(e)
	}
	s.setState(state)
	rec2 := s.Record()
	s.d.Audience.Event(step.Event{Time: now, Event: step.EventEnd, State: state, RC: &code, Text: rec2.Reason})
}

// verdict is the step's state and exit code: what has ended the step counts
// before what its tasks did; of the tasks the highest code, 128+n for a signal.
func (s *Step) verdict() (step.State, int, *int) {
	code, signal, worst := step.WorstTask(s.rec.Tasks)
	if c := s.endedBy(); c != nil {
		if state, code, signal, counts := s.endedAs(c, code, signal); counts {
			return state, code, signal
		}
	}
	if c := s.failedLater(); c != nil && code == 0 {
		// The first cause has ended nothing, and this one has.
		state, code, signal, _ := s.endedAs(c, code, signal)
		return state, code, signal
	}
	switch {
	case len(s.rec.OOM) > 0:
		if code == 0 {
			code = exitOOM
		}
		return step.OutOfMemory, code, signal
	case code != 0:
		if st := s.rec.Tasks[worst].Status; st != nil { // else the lost status is the reason already
			s.noteReason(fmt.Sprintf("task %d: %s", s.rank(worst), st.Describe()))
		}
		return step.Failed, code, signal
	case s.floor > 0:
		return step.Failed, s.floor, nil
	}
	return step.Completed, 0, nil
}

// endedAs is what the cause of the step's end makes of it. code and signal are those of its
// tasks. counts is false where the tasks decide.
func (s *Step) endedAs(c *cause, code int, signal *int) (_ step.State, _ int, _ *int, counts bool) {
	var state step.State
	switch c.kind {
	case byFailure:
		state, code, signal = step.Failed, c.code, nil
		s.rec.Drain = c.drain
	case byAbort:
		// The task that has aborted decides the code (lifecycle, end).
		state, code, signal = step.Failed, c.code, nil
		s.rec.Aborted = true
	case byTime:
		state, code = step.Timeout, max(code, 1)
	case byMemory:
		if state = step.OutOfMemory; len(s.rec.OOM) > 0 && code == 0 {
			code = exitOOM
		}
		code = max(code, 1)
	case byRequest, byHost:
		if code == 0 && s.gateOpen {
			return "", 0, nil, false // all tasks had ended well: it has ended nothing
		}
		if state = step.Cancelled; !s.gateOpen {
			code, signal = 1, nil // no task has run
		}
		if c.kind == byHost {
			state = step.NodeFail
		}
	default: // byBadExit
		return "", 0, nil, false
	}
	s.leadReason(c.reason)
	return state, code, signal, true
}

// addFailures completes tasks by what they said themselves before they ended.
// Its log channel is at its end now, so that nothing is missing.
func (s *Step) addFailures() {
	for id, f := range s.fails {
		t := &s.rec.Tasks[id]
		t.State, t.Stage, t.Errno = step.TaskFailed, f.Stage, int(f.Errno)
		t.Object, t.Why = f.Object, f.Why
	}
}
