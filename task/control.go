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
	cancelled chan struct{} // closed by the first Cancel
	reason    string        // guarded by ctlMu
	cause     endCause      // guarded by ctlMu
	aborted   *mpiAbort     // guarded by ctlMu
	toldNodes bool          // guarded by ctlMu: the other nodes know that the step ends
	byNode    *step.NodeEnd // guarded by ctlMu: which of them has ended it
	sent      uint64        // guarded by ctlMu: a bit for each signal that Signal has sent
	noted     int           // guarded by ctlMu: signals that noteSignal was asked to note
	mpiTasks  step.MPITasks
}

// endCause says who ended a step before its tasks did.
type endCause int

const (
	byRequest endCause = iota // a user: CANCELLED
	byBadExit                 // --kill-on-bad-exit: the tasks' codes count
	byAbort                   // MPI: the abort's code counts
	byMemory                  // OverMemoryKill: OUT_OF_MEMORY
	byOther                   // another node: CANCELLED, with its words
	byTime                    // its time limit: TIMEOUT
	byHost                    // stepd's own SIGTERM, as when the host goes down: NODE_FAIL
)

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
	s.cancelBy(byRequest, reason)
	return nil
}

func (s *Step) cancelBy(cause endCause, reason string) {
	if s.end(cause, reason) {
		s.tellNodes(step.NodeEnd{Why: step.EndCancel, Reason: reason})
	}
}

// downCause is the cause of an end that stepd's host has wanted: a step of several nodes has
// its words from one of them, and is cancelled.
func (s *Step) downCause() endCause {
	if s.plan.Spec.Layout != nil {
		return byRequest
	}
	return byHost
}

// end begins the end, once: the first cause is the step's. It tells whether it
// was this one.
func (s *Step) end(cause endCause, reason string) (first bool) {
	s.settleProgress()
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	select {
	case <-s.cancelled:
		return false
	default:
		s.cause, s.reason = cause, reason
		close(s.cancelled)
		return true
	}
}

// endedBy tells who ended the step, if somebody has.
func (s *Step) endedBy() (cause endCause, reason string, ended bool) {
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	select {
	case <-s.cancelled:
		return s.cause, s.reason, true
	default:
		return 0, "", false
	}
}

func (s *Step) cancelReason() (string, bool) {
	_, reason, ended := s.endedBy()
	return reason, ended
}

// killedByUs tells whether a task that ended by sig was sent it: by the step's
// end, or by a user. A plugin is not to blame for that.
func (s *Step) killedByUs(sig syscall.Signal) bool {
	s.ctlMu.Lock()
	sent := s.sent&(1<<uint(sig&63)) != 0
	s.ctlMu.Unlock()
	_, ending := s.cancelReason()
	return sent || (ending && (sig == syscall.SIGTERM || sig == syscall.SIGKILL))
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
	end := step.NodeEnd{Why: step.EndAbort, Code: abortCode(code), Reason: text}
	if rank >= 0 {
		end.Rank, end.Reason = &rank, fmt.Sprintf("task %d: MPI abort with code %d: %s", rank, code, text)
	}
	if s.end(byAbort, end.Reason) {
		s.tellNodes(end)
	}
}

func (s *Step) abortedBy() *mpiAbort {
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	return s.aborted
}

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
	cause, _, _ := s.endedBy()
	if s.endSuspension() || cause == byMemory {
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
