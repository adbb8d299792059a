package task

import (
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
	first     *cause        // guarded by ctlMu: why the step ends, nil while it does not
	failed    *cause        // guarded by ctlMu: the first failure behind another cause
	ending    bool          // guarded by ctlMu: cancelled is closed
	cancelled chan struct{} // closed when the step's processes are to be terminated
	sent      uint64        // guarded by ctlMu: a bit for each signal that Signal has sent
	noted     int           // guarded by ctlMu: signals that noteSignal was asked to note
	mpiTasks  step.MPITasks
}

func (c *control) init() { c.cancelled = make(chan struct{}) }

// Signal sends sig to the process of every task (scope "tasks" or ""), to that of
// the step's first task alone ("leader"), or to every process of the step
// ("cgroup", of which "all" is the older name).
func (s *Step) Signal(sig int, scope string) error {
	if err := s.maySignal(sig); err != nil {
		return err
	}
	switch scope {
	case step.ScopeCgroup, "all":
		s.evictHost()
		return s.d.Tracker.Signal(syscall.Signal(sig))
	case "", step.ScopeTasks, step.ScopeLeader:
		s.eachPidfd(func(id, pidfd int) {
			if scope != step.ScopeLeader || s.rank(id) == 0 {
				s.sendTask(id, pidfd, sig)
			}
		})
		return nil
	}
	return fmt.Errorf("cannot send signal to scope %q: want leader, tasks or cgroup", scope)
}

// maySignal tells whether a signal can be sent now, and notes that it is.
func (s *Step) maySignal(sig int) error {
	if sig < 1 || sig > 64 {
		return fmt.Errorf("cannot send signal %d: there is none of this number", sig)
	}
	if st := s.Record().State; st != step.Running {
		return fmt.Errorf("cannot send signal %d: the step is %s", sig, st)
	}
	if sig != int(unix.SIGKILL) && s.isSuspended() {
		return fmt.Errorf("cannot send signal %d: the step is suspended", sig)
	}
	s.ctlMu.Lock()
	s.sent |= 1 << uint(sig&63)
	s.ctlMu.Unlock()
	return nil
}

func (s *Step) sendTask(id, pidfd, sig int) {
	s.noteSignal(s.rank(id), sig)
	unix.PidfdSendSignal(pidfd, syscall.Signal(sig), nil, 0) // ESRCH: it has just ended
}

// signalsNoted is how many lines about signals the event log has of each task, on
// average: who signals in a loop does not fill the disk.
const signalsNoted = 64

// noteSignal notes a signal in the event log, unless that has too many of them.
func (s *Step) noteSignal(rank, sig int) {
	limit := signalsNoted * len(s.plan.Ranks)
	s.ctlMu.Lock()
	s.noted++
	n := s.noted
	s.ctlMu.Unlock()
	e := step.Event{Time: s.d.Now(), Event: step.EventTaskSignal, Rank: &rank, Signal: &sig}
	switch {
	case n > limit:
		return
	case n == limit:
		e.Text = fmt.Sprintf("%d signals were noted: further ones are not", n)
	}
	s.d.Audience.Event(e)
}

// terminator is the way from a Cancel to the last process: TERM, KillWait,
// KILL, and KillWait again for the host to tell the ends.
type terminator struct {
	timer  *time.Timer
	c      <-chan time.Time
	killed bool
}

// begin sends SIGTERM, and SIGCONT so that stopped processes hear it. A
// suspended step gets SIGKILL at once, as in Slurm: to wake it would give it
// KillWait on a node that it was to leave alone. So does one that uses too much
// memory.
func (s *Step) beginTermination(t *terminator) {
	if s.endSuspension() || s.endedBy().kind == byMemory {
		t.wait(0)
		return
	}
	sig := int(syscall.SIGTERM)
	s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventKill, Signal: &sig})
	s.evictHost()
	if err := s.d.Tracker.Signal(syscall.SIGTERM); err != nil {
		s.d.Audience.Log(step.LogError, err.Error())
	}
	s.d.Tracker.Signal(syscall.SIGCONT)
	s.signalEscaped(syscall.SIGTERM)
	t.wait(s.plan.Spec.KillWaitS)
}

func (t *terminator) wait(seconds int) {
	t.stop()
	t.timer = time.NewTimer(time.Duration(seconds) * time.Second)
	t.c = t.timer.C
}

// next is called when a wait is over.
func (s *Step) nextTermination(t *terminator) error {
	if t.killed && s.endHeldBack() {
		t.c = nil
		return nil
	}
	if t.killed {
		// The tasks are dead, and a host that is not in a hook has told so.
		s.setHostCause("did not tell the tasks' ends " + afterCancel)
		s.host.Kill()
		t.c = nil
		return nil
	}
	t.killed = true
	if err := s.killTasks(); err != nil {
		s.hostBusy = true // it still waits, and can take no other command
		return err
	}
	t.wait(max(1, s.plan.Spec.KillWaitS))
	return nil
}

func (t *terminator) stop() {
	if t.timer != nil {
		t.timer.Stop()
	}
}

// eviction is the host's one way out of the tasks' cgroup.
type eviction struct {
	mu   sync.Mutex // held while the kernel moves it, which may take 10 ms
	done bool       // guarded by mu
}

// evictHost moves the host out of the tasks' cgroup, once, and returns when it
// is out: before anything is sent there that must not hit it. It may be
// called from any goroutine.
func (s *Step) evictHost() {
	s.eviction.mu.Lock()
	defer s.eviction.mu.Unlock()
	if s.eviction.done || s.hostIsGone() {
		return
	}
	s.eviction.done = true
	err := s.d.Tracker.EvictHost(s.host.PID())
	if err != nil && !s.hostIsGone() {
		s.d.Audience.Log(step.LogError, err.Error())
	}
	if err == nil && s.d.Accounting != nil {
		s.d.Accounting.HostMoved()
	}
}

// hostIsOut notes that the host was never in the tasks' cgroup.
func (s *Step) hostIsOut() {
	s.eviction.mu.Lock()
	defer s.eviction.mu.Unlock()
	s.eviction.done = true
}

func (s *Step) hostIsGone() bool {
	select {
	case <-s.hostGone:
		return true
	default:
		return false
	}
}

// killTasks sends SIGKILL to all that is left of the tasks and waits for it.
func (s *Step) killTasks() error {
	sig := int(syscall.SIGKILL)
	s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventKill, Signal: &sig})
	s.evictHost()
	ctx, cancel := s.killContext()
	defer cancel()
	s.signalEscaped(syscall.SIGKILL)
	return s.killed(s.d.Tracker.Kill(ctx))
}
