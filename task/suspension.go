package task

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step"
)

const (
	// stopGrace is what the tasks have from SIGTSTP to the freezer, as in Slurm.
	stopGrace = 2 * time.Second
	// freezeMax bounds the wait for the kernel's word that all stand still: a
	// process in uninterruptible sleep stops only when it wakes up.
	freezeMax = 4 * time.Second
)

// suspendPhase is where a step is between running and standing still.
type suspendPhase string

const (
	launching suspendPhase = "launching" // the tasks were not started
	atGate    suspendPhase = "at gate"   // suspended before they were: it goes on to the gate, and no task execs
	awake     suspendPhase = "awake"     // the tasks run
	stopping  suspendPhase = "stopping"  // SIGTSTP was sent, the freezer follows
	frozen    suspendPhase = "frozen"
	ending    suspendPhase = "ending" // it cannot be suspended any more
)

var suspendMoves = moves[suspendPhase]{
	launching: {atGate, awake, ending},
	atGate:    {launching, ending},
	awake:     {stopping, ending},
	stopping:  {awake, frozen, ending},
	frozen:    {awake, ending},
}

// suspension makes the tasks stand still, and wakes them. Any goroutine may use it.
type suspension struct {
	tracker  Tracker
	messages *messages
	ledger   *ledger
	causes   *causes
	host     *hostProcess
	grace    time.Duration // stopGrace; tests shorten it

	mu    sync.Mutex
	phase suspendPhase // guarded by mu
	// by is who has suspended it: what root has, its owner cannot undo.
	by   uint32        // guarded by mu
	stop *stopAttempt  // guarded by mu: of the phase stopping
	let  chan struct{} // guarded by mu: closed when a step that waits at the gate goes on
}

// stopAttempt is one way from running to standing still.
type stopAttempt struct {
	abort   chan struct{} // closed, under mu, to end it early
	settled chan struct{} // closed when it is over; what follows is valid then
	stopped bool
	err     error // why the tasks do not stand still
}

func newSuspension(t Tracker, m *messages, l *ledger, c *causes, h *hostProcess) *suspension {
	return &suspension{tracker: t, messages: m, ledger: l, causes: c, host: h, grace: stopGrace, phase: launching}
}

// move changes the phase; the caller holds mu.
func (s *suspension) move(to suspendPhase) {
	var err error
	if s.phase, err = suspendMoves.move("suspension", s.phase, to); err != nil {
		s.messages.log(err.Error())
	}
}

// Suspend stops all processes of the tasks: SIGTSTP, two seconds for those that
// want to prepare, then the freezer (SIGSTOP where there is none). It returns
// when they stand still. Of a step whose tasks have not begun it holds back the
// beginning. by is the uid of the client. A step that is suspended stays so, and a second
// call during the first returns with it. The step's plugins and daemons go on: they are
// not the tasks'.
func (s *suspension) Suspend(by uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if by == 0 && s.by != 0 && (s.phase == atGate || s.phase == stopping || s.phase == frozen) {
		s.takeOver()
	}
	for s.phase == stopping {
		a := s.stop
		s.await(a)
		switch {
		case s.phase == stopping || s.phase == frozen:
		case a.err != nil:
			return a.err
		default:
			return errWoken
		}
	}
	switch s.phase {
	case ending:
		return errors.New("cannot suspend the step: it is ending")
	case launching:
		s.by, s.let = by, make(chan struct{})
		s.move(atGate)
		s.noteSuspended()
		return nil
	case awake:
		return s.stopAs(by)
	}
	return nil
}

// stopAs is the way from awake to frozen, or back. The caller holds mu, which is released
// meanwhile.
func (s *suspension) stopAs(by uint32) error {
	a := &stopAttempt{abort: make(chan struct{}), settled: make(chan struct{})}
	s.by, s.stop = by, a
	s.move(stopping)
	s.mu.Unlock()
	a.stopped, a.err = s.stopTasks(a.abort)
	s.mu.Lock()
	switch {
	case a.stopped && s.phase == stopping:
		s.move(frozen)
	case s.phase == stopping:
		s.move(awake)
	}
	if a.stopped {
		s.noteSuspended()
	}
	close(a.settled)
	return a.err
}

// takeOver makes root the one who has suspended the step; the caller holds mu.
func (s *suspension) takeOver() {
	s.by = 0
	was := false
	s.ledger.write(func(rec *step.Record) {
		if was = rec.SuspendedBy != nil; was {
			rec.SuspendedBy = new(uint32)
		}
	})
	if was {
		s.messages.audience.State(s.ledger.copy())
	}
}

// stopTasks is the way into the freezer. It reports whether the tasks are stopped, be it
// in part. After an error that left them so only a resume that succeeds lets all of them run.
func (s *suspension) stopTasks(abort <-chan struct{}) (stopped bool, err error) {
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
	s.host.evict() // plugins are never stopped
	if err := s.host.signalTasks(unix.SIGTSTP); err != nil {
		s.messages.log(fmt.Sprintf("not every process was sent SIGTSTP: %v", err)) // the freezer stops all
	}
	select {
	case <-time.After(s.grace):
		err = s.tracker.Freeze(ctx)
	case <-abort:
		err = errWoken
	}
	if err == nil || (ctx.Err() != nil && !errors.Is(context.Cause(ctx), errWoken)) {
		if err != nil {
			// It will stop as soon as it can: the freezer stays on.
			s.messages.log(fmt.Sprintf("not every process of the suspended step stands still: %v", err))
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

// errWoken ends a suspend that was undone before it was done.
var errWoken = errors.New("the step was resumed, or is ending, before it stood still")

// wake lets the tasks' processes run: the freezer first, since a frozen
// process hears no SIGCONT.
func (s *suspension) wake() error {
	return errors.Join(s.tracker.Thaw(), s.host.signalTasks(unix.SIGCONT))
}

// Resume undoes Suspend. by is the uid of the client: what root has suspended, only root
// resumes. Where not every process can be woken, the step stays suspended.
func (s *suspension) Resume(by uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.phase == atGate || s.phase == stopping || s.phase == frozen) && s.by == 0 && by != 0 {
		return errors.New("permission denied: the step was suspended by root")
	}
	aborted := s.phase == stopping
	for s.phase == stopping {
		s.abort(s.stop)
	}
	switch s.phase {
	case atGate:
		close(s.let)
		s.move(launching)
	case frozen:
		if err := s.wake(); err != nil {
			ctx, cancel := freezeContext(0)
			defer cancel()
			return fmt.Errorf("the step stays suspended: %w", errors.Join(err, s.tracker.Freeze(ctx)))
		}
		s.move(awake)
	default:
		if aborted {
			return nil
		}
		return errors.New("cannot resume the step: it is not suspended")
	}
	s.noteResumed()
	return nil
}

// abort ends an attempt and waits for its result. The caller holds mu.
func (s *suspension) abort(a *stopAttempt) {
	select {
	case <-a.abort:
	default:
		close(a.abort)
	}
	s.await(a)
}

// await returns when an attempt is over. The caller holds mu, which is released
// meanwhile.
func (s *suspension) await(a *stopAttempt) {
	s.mu.Unlock()
	<-a.settled
	s.mu.Lock()
}

// end is called when the step ends: it cannot be suspended from now
// on. It reports whether the tasks stand still; then nothing but SIGKILL reaches them.
func (s *suspension) end() (still bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, a := s.phase, s.stop
	if was == ending {
		return false
	}
	s.move(ending)
	if was == stopping {
		s.abort(a)
		still = a.stopped
	} else {
		still = was == frozen
	}
	if still || was == atGate {
		s.noteResumed()
	}
	return still
}

// passGate returns when the tasks may start: at once unless the step is
// suspended. open is called under the lock that Suspend takes.
func (s *suspension) passGate(open func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.phase == atGate {
		let := s.let
		s.mu.Unlock()
		select {
		case <-let:
		case <-s.causes.cancelled:
		}
		s.mu.Lock()
		if c := s.causes.endedBy(); c != nil {
			return c
		}
	}
	err := open()
	if err == nil {
		s.move(awake)
	}
	return err
}

// stands reports whether the step is suspended: signals are refused then.
func (s *suspension) stands() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.phase == frozen || s.phase == atGate
}

// noteSuspended writes it into the record; the caller holds mu.
func (s *suspension) noteSuspended() {
	now, by := s.messages.now(), s.by
	s.ledger.write(func(rec *step.Record) { rec.Suspended, rec.SuspendedBy = &now, &by })
	s.report(eventlog.EventSuspend, now)
}

// noteResumed takes it out again; the caller holds mu.
func (s *suspension) noteResumed() {
	now := s.messages.now()
	s.ledger.write(func(rec *step.Record) {
		if rec.Suspended != nil && rec.Started != nil {
			rec.SuspendedSeconds += now.Sub(*rec.Suspended).Seconds()
		}
		rec.Suspended, rec.SuspendedBy = nil, nil
	})
	s.report(eventlog.EventResume, now)
}

func (s *suspension) report(event string, now time.Time) {
	s.messages.event(eventlog.Event{Time: now, Event: event})
	s.messages.audience.State(s.ledger.copy())
}
