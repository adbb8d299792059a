package task

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

const (
	// stopGrace is what the tasks have from SIGTSTP to the freezer, as in Slurm.
	stopGrace = 2 * time.Second
	// freezeMax bounds the wait for the kernel's word that all stand still: a
	// process in uninterruptible sleep stops only when it wakes up.
	freezeMax = 4 * time.Second
)

// suspension is where a step is between running and standing still.
type suspension struct {
	grace time.Duration // stopGrace; tests shorten it
	suMu  sync.Mutex
	phase suspendPhase // guarded by suMu
	// by is who has suspended it: what root has, its owner cannot undo.
	by uint32 // guarded by suMu
	// gateIsOpen: the tasks were let go. Before that a suspended step goes on to
	// the gate, and none of its tasks runs a program.
	gateIsOpen bool          // guarded by suMu
	ended      bool          // guarded by suMu: nothing can be suspended any more
	stop       *stopAttempt  // guarded by suMu: of the phase stopping
	let        chan struct{} // guarded by suMu: closed when a step that waits at the gate goes on
}

// stopAttempt is one way from running to standing still.
type stopAttempt struct {
	abort   chan struct{} // closed, under suMu, to end it early
	settled chan struct{} // closed when it is over
	err     error         // why the tasks do not stand still; valid when settled is closed
}

type suspendPhase int

const (
	awake    suspendPhase = iota
	stopping              // SIGTSTP was sent, the freezer comes
	atGate                // no task was let go
	frozen
)

// Suspend stops all processes of the tasks: SIGTSTP, two seconds for those that
// want to prepare, then the freezer (SIGSTOP where there is none). It returns
// when they stand still. Of a step whose tasks have not begun it holds back the
// beginning. by is the uid that asks. A step that is suspended stays so, and a second
// call during the first returns with it. The step's plugins and daemons go on: they are
// not the tasks'.
func (s *Step) Suspend(by uint32) error {
	s.suMu.Lock()
	defer s.suMu.Unlock()
	if by == 0 && s.phase != awake && s.by != 0 {
		s.takeOver()
	}
	for s.phase == stopping {
		a := s.stop
		s.await(a)
		switch {
		case s.phase != awake:
		case a.err != nil:
			return a.err
		default:
			return errWoken
		}
	}
	switch {
	case s.ended:
		return errors.New("cannot suspend the step: it is ending")
	case s.phase != awake:
		return nil
	case !s.gateIsOpen:
		s.phase, s.by, s.let = atGate, by, make(chan struct{})
		s.noteSuspended()
		return nil
	}
	a := &stopAttempt{abort: make(chan struct{}), settled: make(chan struct{})}
	s.phase, s.by, s.stop = stopping, by, a
	s.suMu.Unlock()
	stopped, err := s.stopTasks(a.abort)
	s.suMu.Lock()
	s.phase = awake
	if stopped {
		s.phase = frozen
		s.noteSuspended()
	}
	a.err = err
	close(a.settled)
	return err
}

// takeOver makes root the one who has suspended the step; the caller holds suMu.
func (s *Step) takeOver() {
	s.by = 0
	s.mu.Lock()
	was := s.rec.SuspendedBy
	if was != nil {
		s.rec.SuspendedBy = new(uint32)
	}
	s.mu.Unlock()
	if was != nil {
		s.d.Audience.State(s.Record())
	}
}

// stopTasks is the way into the freezer. It reports whether the tasks are stopped, be it
// in part. After an error that left them so only a resume that succeeds lets all of them run.
func (s *Step) stopTasks(abort <-chan struct{}) (stopped bool, err error) {
	ctx, cancel := freezeContext(s.grace)
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() { // ends with ctx, which ends with this call
		select {
		case <-abort:
			stop(errWoken)
		case <-ctx.Done():
		}
	}()
	s.evictHost() // plugins are never stopped
	if err := s.d.Tracker.Signal(unix.SIGTSTP); err != nil {
		s.d.Audience.Log(step.LogError, fmt.Sprintf("not every process was sent SIGTSTP: %v", err)) // the freezer stops all
	}
	grace := time.NewTimer(s.grace)
	defer grace.Stop()
	select {
	case <-grace.C:
		err = s.d.Tracker.Freeze(ctx)
	case <-abort:
		err = errWoken
	}
	if err == nil || (ctx.Err() != nil && !errors.Is(context.Cause(ctx), errWoken)) {
		if err != nil {
			// It will stop as soon as it can: the freezer stays on.
			s.d.Audience.Log(step.LogError, fmt.Sprintf("not every process of the suspended step stands still: %v", err))
		}
		return true, nil
	}
	werr := s.wake()
	return werr != nil, errors.Join(err, werr)
}

// freezeContext bounds a freeze that begins when grace is over.
func freezeContext(grace time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(context.Background(), grace+freezeMax, fmt.Errorf("still not after %v", freezeMax))
}

// errWoken ends a suspend that somebody has undone before it was done.
var errWoken = errors.New("the step was resumed, or is ending, before it stood still")

// wake lets the tasks' processes run: the freezer first, since a frozen
// process hears no SIGCONT.
func (s *Step) wake() error {
	return errors.Join(s.d.Tracker.Thaw(), s.d.Tracker.Signal(unix.SIGCONT))
}

// Resume undoes Suspend. by is the uid that asks: what root has suspended, only root
// resumes. Where not every process can be woken, the step stays suspended.
func (s *Step) Resume(by uint32) error {
	s.suMu.Lock()
	defer s.suMu.Unlock()
	if s.phase != awake && s.by == 0 && by != 0 {
		return errors.New("permission denied: the step was suspended by root")
	}
	aborted := s.phase == stopping
	for s.phase == stopping {
		s.abortStop()
	}
	switch s.phase {
	case awake:
		if aborted {
			return nil
		}
		return errors.New("cannot resume the step: it is not suspended")
	case frozen:
		if err := s.wake(); err != nil {
			ctx, cancel := freezeContext(0)
			defer cancel()
			return fmt.Errorf("the step stays suspended: %w", errors.Join(err, s.d.Tracker.Freeze(ctx)))
		}
	case atGate:
		close(s.let)
	}
	s.phase = awake
	s.noteResumed()
	return nil
}

// abortStop ends the phase stopping and waits for what comes of it. The caller
// holds suMu.
func (s *Step) abortStop() {
	select {
	case <-s.stop.abort:
	default:
		close(s.stop.abort)
	}
	s.await(s.stop)
}

// await returns when an attempt is over. The caller holds suMu, which is released
// meanwhile.
func (s *Step) await(a *stopAttempt) {
	s.suMu.Unlock()
	<-a.settled
	s.suMu.Lock()
}

// endSuspension is called when the step ends: it cannot be suspended from now
// on. It tells whether the tasks stand still; then nothing but SIGKILL reaches them.
func (s *Step) endSuspension() (still bool) {
	s.suMu.Lock()
	defer s.suMu.Unlock()
	s.ended = true
	if s.phase == stopping {
		s.abortStop()
	}
	if s.phase == awake {
		return false
	}
	still = s.phase == frozen
	s.phase = awake
	s.noteResumed()
	return still
}

// passGate returns when the tasks may be let go: at once unless the step is
// suspended. opened is called under the lock that Suspend takes.
func (s *Step) passGate(open func() error) error {
	s.suMu.Lock()
	defer s.suMu.Unlock()
	for s.phase == atGate {
		let := s.let
		s.suMu.Unlock()
		select {
		case <-let:
		case <-s.cancelled:
		}
		s.suMu.Lock()
		if c := s.endedBy(); c != nil {
			return c
		}
	}
	err := open()
	s.gateIsOpen = err == nil
	return err
}

// isSuspended tells whether signals are to be refused.
func (s *Step) isSuspended() bool {
	s.suMu.Lock()
	defer s.suMu.Unlock()
	return s.phase == frozen || s.phase == atGate
}

// noteSuspended writes it into the record; the caller holds suMu.
func (s *Step) noteSuspended() {
	now, by := s.d.Now(), s.by
	s.mu.Lock()
	s.rec.Suspended, s.rec.SuspendedBy = &now, &by
	s.mu.Unlock()
	s.tellSuspension(step.EventSuspend, now)
}

// noteResumed takes it out again; the caller holds suMu.
func (s *Step) noteResumed() {
	now := s.d.Now()
	s.mu.Lock()
	if s.rec.Suspended != nil && s.rec.Started != nil {
		s.rec.SuspendedSeconds += now.Sub(*s.rec.Suspended).Seconds()
	}
	s.rec.Suspended, s.rec.SuspendedBy = nil, nil
	s.mu.Unlock()
	s.tellSuspension(step.EventResume, now)
}

func (s *Step) tellSuspension(event string, now time.Time) {
	s.d.Audience.Event(step.Event{Time: now, Event: event})
	s.d.Audience.State(s.Record())
}

// stoodStill is for how long the step has stood still so far, and whether it
// does now: then no hook of a task is overdue.
func (s *Step) stoodStill() (total time.Duration, now bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.rec.SuspendedSeconds * float64(time.Second)), s.rec.Suspended != nil
}
