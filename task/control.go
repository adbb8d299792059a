package task

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// control is what others may ask of a step.
type control struct {
	ctlMu     sync.Mutex
	cancelled chan struct{} // closed by the first Cancel
	reason    string        // guarded by ctlMu
	aborted   *mpiAbort     // guarded by ctlMu
	mpiTasks  step.MPITasks
}

// mpiAbort is a rank's request to end the step.
type mpiAbort struct {
	rank, code int
	text       string
}

func (c *control) init() { c.cancelled = make(chan struct{}) }

// errCancelled ends a launch that somebody has cancelled.
type errCancelled struct{ reason string }

func (e errCancelled) Error() string { return e.reason }

// Cancel ends the step: SIGTERM to all of its processes, after KillWait
// SIGKILL. Before the gate is open nothing is started at all. It does not wait.
func (s *Step) Cancel(reason string) error {
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	if s.cancelled == nil {
		return errors.New("the step is not running")
	}
	select {
	case <-s.cancelled:
		return nil
	default:
	}
	s.reason = reason
	close(s.cancelled)
	return nil
}

func (s *Step) cancelReason() (string, bool) {
	select {
	case <-s.cancelled:
	default:
		return "", false
	}
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	return s.reason, true
}

// mpiAbort is called by the MPI plugin when a rank asks for the step's end, or
// has died in the middle of it. A step that ends already is not aborted: its
// ranks die because they are killed.
func (s *Step) mpiAbort(rank, code int, text string) {
	if _, ending := s.cancelReason(); ending {
		return
	}
	s.ctlMu.Lock()
	if s.aborted == nil {
		s.aborted = &mpiAbort{rank, code, text}
	}
	s.ctlMu.Unlock()
	s.Cancel(fmt.Sprintf("task %d: MPI abort with code %d: %s", rank, code, text))
}

func (s *Step) abortedBy() *mpiAbort {
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	return s.aborted
}

// cancelLaunch ends a launch that is inside a plugin's hook: nothing else can
// end that hook. A host that is not there yet is not started any more.
func (s *Step) cancelLaunch(*hookWatch) {
	if kill := s.hostKiller(); kill != nil {
		kill()
	}
}

// Signal sends sig to every task (scope "tasks" or ""), or to every process of
// the step ("all").
func (s *Step) Signal(sig int, scope string) error {
	if sig < 1 || sig > 64 {
		return fmt.Errorf("cannot send signal %d: there is none of this number", sig)
	}
	if st := s.Record().State; st != step.Running {
		return fmt.Errorf("cannot send signal %d: the step is %s", sig, st)
	}
	switch scope {
	case "all":
		return s.d.Tracker.Signal(syscall.Signal(sig))
	case "", "tasks":
		s.eachPidfd(func(rank, pidfd int) {
			s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventTaskSignal, Rank: &rank, Signal: &sig})
			unix.PidfdSendSignal(pidfd, syscall.Signal(sig), nil, 0) // ESRCH: it has just ended
		})
		return nil
	}
	return fmt.Errorf("cannot send signal to scope %q: want tasks or all", scope)
}

// terminator is the way from a Cancel to the last process: TERM, KillWait, KILL.
type terminator struct {
	timer *time.Timer
	c     <-chan time.Time
}

// begin sends SIGTERM, and SIGCONT so that stopped processes hear it.
func (s *Step) beginTermination(t *terminator) {
	sig := int(syscall.SIGTERM)
	s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventKill, Signal: &sig})
	s.evictHost()
	if err := s.d.Tracker.Signal(syscall.SIGTERM); err != nil {
		s.d.Audience.Log(step.LogError, err.Error())
	}
	s.d.Tracker.Signal(syscall.SIGCONT)
	t.timer = time.NewTimer(time.Duration(s.plan.Spec.KillWaitS) * time.Second)
	t.c = t.timer.C
}

func (t *terminator) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// evictHost moves the host out of the tasks' cgroup, once, before anything is
// sent there that must not hit it (rulings 3).
func (s *Step) evictHost() {
	if s.evicted || s.hostDead {
		return
	}
	s.evicted = true
	if err := s.d.Tracker.EvictHost(s.host.PID()); err != nil {
		s.d.Audience.Log(step.LogError, err.Error())
	}
}

// killTasks sends SIGKILL to all that is left of the tasks and waits for it.
func (s *Step) killTasks() error {
	sig := int(syscall.SIGKILL)
	s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventKill, Signal: &sig})
	s.evictHost()
	ctx, cancel := context.WithTimeout(context.Background(), unkillableAfter)
	defer cancel()
	return s.d.Tracker.Kill(ctx)
}

// unkillableAfter is how long the end of killed processes is waited for.
const unkillableAfter = 60 * time.Second
