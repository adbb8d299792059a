package task

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// endKind is what ends a step other than its tasks' own ends.
type endKind int

const (
	byRequest endKind = iota // a user: CANCELLED
	byBadExit                // --kill-on-bad-exit: the tasks' codes count
	byAbort                  // MPI: the abort's code counts
	byMemory                 // its memory limit: OUT_OF_MEMORY
	byTime                   // its time limit: TIMEOUT
	byHost                   // stepd's own SIGTERM, as when the host goes down: NODE_FAIL
	byFailure                // the launch has failed, or the plugins' host has died: FAILED
)

// cause is why a step ends. It is the error of a launch that it has ended.
type cause struct {
	kind   endKind
	reason string // one line, for the record
	// rank is the task that did it, nil where none did.
	rank *int
	// code is the step's exit code, of an abort and of a failure.
	code int
	// drain is why the node takes no more jobs, of a failure that the node is to blame for.
	drain string
	// ends: the processes end without being terminated. The kernel has killed them all, or
	// Run is on its way to the end.
	ends bool
	// elsewhere: another node tells the users.
	elsewhere bool
	// kill: the processes get SIGKILL at once, and no SIGTERM before.
	kill bool
}

// Error is the reason.
func (c *cause) Error() string { return c.reason }

// causes are why a step ends: the first one is the step's. Any goroutine may use them.
type causes struct {
	cancelled chan struct{} // closed when the step's processes are to be terminated

	mu     sync.Mutex
	first  *cause // guarded by mu: nil while the step does not end
	failed *cause // guarded by mu: the first failure behind another cause
	ending bool   // guarded by mu: cancelled is closed
}

func newCauses() *causes { return &causes{cancelled: make(chan struct{})} }

// add notes one more cause, and reports whether it is the first one.
func (a *causes) add(c cause) (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch first = a.first == nil; {
	case first:
		a.first = &c
	case c.kind == byFailure && a.failed == nil:
		a.failed = &c
	}
	if !c.ends && !a.ending {
		a.ending = true
		close(a.cancelled)
	}
	return first
}

// get returns the cause of the step's end and a failure that came after another cause,
// nil without one.
func (a *causes) get() (first, failed *cause) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.first, a.failed
}

// endedBy is the cause of the step's end, nil while there is none.
func (a *causes) endedBy() *cause {
	first, _ := a.get()
	return first
}

// terminated reports whether the step's end may have sent sig to its tasks.
func (a *causes) terminated(sig syscall.Signal) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ending && (sig == syscall.SIGTERM || sig == syscall.SIGKILL)
}

// Ending is closed when the step's end has been asked for.
func (s *Step) Ending() <-chan struct{} { return s.causes.cancelled }

// Cancel ends the step: SIGTERM to all of its processes, after KillWait
// SIGKILL. Before the gate is open nothing is started at all. It does not wait.
func (s *Step) Cancel(reason string) error {
	s.end(cause{kind: byRequest, reason: reason})
	return nil
}

// Kill is Cancel with SIGKILL at once.
func (s *Step) Kill(reason string) {
	s.end(cause{kind: byRequest, reason: reason, kill: true})
}

// end is the one way to end a step: the first cause becomes the step's, and stays. It
// reports whether c is that one. It does not wait, and may be called from any goroutine.
func (s *Step) end(c cause) (first bool) {
	s.progress.settle()
	return s.causes.add(c)
}

// LauncherLost says that the launching client is gone. Before every task has
// exec'd that ends the step, as a cancel does; after it the tasks find out by
// their pipes.
func (s *Step) LauncherLost() {
	switch {
	case s.plan.Spec.Parent != nil:
		// They are connected, and their output has nowhere to go.
		s.Cancel("the step that has spawned it, " + s.plan.Spec.Parent.Name() + ", is gone")
	case !s.tasks.gone():
		s.Cancel("the client went away before the tasks were started")
	}
}

// mpiAbort is called by the MPI plugin when a rank asks for the step's end, or
// has died in the middle of it; rank is below 0 where none did. Of a step that ends
// already it changes nothing: its ranks die because they are killed.
func (s *Step) mpiAbort(rank, code int, text string) {
	c := cause{kind: byAbort, code: max(1, code&0xff), reason: text} // an abort is no success
	if rank >= 0 {
		c.rank, c.reason = &rank, fmt.Sprintf("task %d: MPI abort with code %d: %s", rank, code, text)
	}
	if s.end(c) && s.d.Aborted != nil {
		s.d.Aborted(rank, code, text)
	}
}

// AbortedElsewhere ends the step because MPI has ended it on another node, which has said so to
// its users. It may be called from any goroutine.
func (s *Step) AbortedElsewhere(rank, code int, text string) {
	c := cause{kind: byAbort, code: max(1, code&0xff), reason: text, elsewhere: true}
	if rank >= 0 {
		c.rank = &rank
	}
	s.end(c)
}

// NodeLost ends the step because it has lost another node, where ranks of this one have begun to
// use MPI: they would wait for that node. It may be called from any goroutine.
func (s *Step) NodeLost(text string, say bool) {
	for _, t := range s.Record().Tasks {
		if t.MPI != nil {
			s.end(cause{kind: byAbort, code: 1, reason: text, elsewhere: !say})
			return
		}
	}
}

// endBadly is --kill-on-bad-exit: a task has failed.
func (s *Step) endBadly(rank int, status step.ExitStatus) {
	if s.tasks.alive == 0 {
		return // nothing is left to end
	}
	reason := fmt.Sprintf("task %d: %s, and --kill-on-bad-exit was given", rank, status.Describe())
	s.end(cause{kind: byBadExit, rank: &rank, reason: reason})
}

// unkillableDefault is UnkillableStepTimeout's default (slurm.conf), and
// lastStrike the least time for what is killed after the timeout was spent.
const (
	unkillableDefault = 60 * time.Second
	lastStrike        = time.Second
)

// killBudget is the one budget for the end of all that is killed: processes that
// do not die must not cost UnkillableStepTimeout at each stage of the end. Only
// Run's goroutine uses it, but for limit.
type killBudget struct {
	seconds  int // UnkillableStepTimeout, 0 is the default
	messages *messages
	ledger   *ledger
	causes   *causes

	began time.Time // zero: nothing is being killed
	// givenUp: processes were left that do not die. noded looks after them.
	givenUp bool
}

// context bounds a kill. Its result goes to spent.
func (b *killBudget) context() (context.Context, context.CancelFunc) {
	now := time.Now()
	if b.began.IsZero() {
		b.began = now
	}
	limit := b.limit()
	return context.WithTimeoutCause(context.Background(), max(lastStrike, limit-now.Sub(b.began)),
		fmt.Errorf("still there %v after SIGKILL (UnkillableStepTimeout)", limit))
}

// limit is UnkillableStepTimeout.
func (b *killBudget) limit() time.Duration {
	if b.seconds <= 0 {
		return unkillableDefault
	}
	return time.Duration(b.seconds) * time.Second
}

// spent notes the result of a kill, and gives processes up that do not die, which
// it reports once. The error is then reported already.
func (b *killBudget) spent(err error) error {
	if err == nil {
		if !b.givenUp { // else what is left has had the whole of it
			b.began = time.Time{}
		}
		return nil
	}
	left, ok := errors.AsType[*launch.SurvivorsError](err)
	if !ok || b.givenUp {
		return err
	}
	b.givenUp = true
	text := err.Error()
	b.messages.sayError(text)
	b.messages.event(eventlog.Event{Event: eventlog.EventUnkillable, Text: text})
	c := b.causes.endedBy()
	b.ledger.write(func(rec *step.Record) {
		if c != nil {
			firstReason(rec, c.reason)
		}
		rec.Survivors, rec.SurvivorsTotal = left.Survivors, left.Total
		if rec.Reason != "" {
			text = rec.Reason + "; " + text
		}
		rec.Reason = text
	})
	return err
}

// isGivenUp reports whether err says what spent has reported.
func isGivenUp(err error) bool {
	_, ok := errors.AsType[*launch.SurvivorsError](err)
	return ok
}

// killer ends the step's processes. Only Run's goroutine uses it.
type killer struct {
	plan       *Plan
	tracker    Tracker
	messages   *messages
	causes     *causes
	budget     *killBudget
	host       *hostProcess
	tasks      *taskTable
	suspension *suspension

	escaped map[int]bool // reported
	// struck: a task lived when the step's end was to end it.
	struck bool
}

// terminate sends SIGTERM, and SIGCONT so that stopped processes hear it. It returns how
// long they have until SIGKILL. A suspended step gets SIGKILL at once, as in Slurm: to
// wake it would give it KillWait on a node that it was to leave alone. So does one that
// uses too much memory.
func (k *killer) terminate() (left time.Duration) {
	k.struck = k.tasks.living()
	if c := k.causes.endedBy(); k.suspension.end() || c.kind == byMemory || c.kill {
		return 0
	}
	wait := time.Duration(k.plan.Spec.KillWaitS) * time.Second
	k.noteKill(eventlog.Event{Signal: new(int(syscall.SIGTERM)), DurUS: new(wait.Microseconds())})
	if err := k.host.signalTasks(syscall.SIGTERM); err != nil {
		k.messages.log(err.Error())
	}
	end := time.Now().Add(wait) // a search among processes that fork without end takes long
	k.host.signalTasks(syscall.SIGCONT)
	k.signalEscaped(syscall.SIGTERM)
	return max(0, time.Until(end))
}

// kill sends SIGKILL to all that is left of the tasks and waits for their end.
func (k *killer) kill() error {
	k.noteKill(eventlog.Event{Signal: new(int(syscall.SIGKILL))})
	ctx, cancel := k.budget.context()
	defer cancel()
	// First the processes that may fork without end: the search is long beside them.
	if err := k.host.signalTasks(syscall.SIGKILL); err != nil {
		k.messages.log(err.Error())
	}
	k.signalEscaped(syscall.SIGKILL)
	if k.host.inside.Load() {
		if alone, err := k.host.isAlone(); alone && err == nil {
			return nil
		}
		k.host.evict()
	}
	return k.budget.spent(k.tracker.Kill(ctx))
}

// noteKill logs a signal to all, with the cause of the step's end where it has one: of tasks that
// have all ended by themselves only leftovers are killed.
func (k *killer) noteKill(e eventlog.Event) {
	e.Event = eventlog.EventKill
	if c := k.causes.endedBy(); c != nil {
		e.Text = c.reason
	}
	k.messages.event(e)
}

// signalEscaped sends sig to tasks that are not in the step's cgroups any more: what acts
// on the cgroups does not reach them. Each is reported once. What descends from the tasks
// and was moved away is reported, and not killed: its mover may want it to live on.
func (k *killer) signalEscaped(sig syscall.Signal) {
	ids := make(map[int]int, len(k.tasks.list))
	var pids []int
	for id := range k.tasks.list {
		if p := &k.tasks.list[id]; p.pid != 0 && p.phase != taskEnded {
			ids[p.pid] = id
			pids = append(pids, p.pid)
		}
	}
	escaped, err := k.tracker.Escaped(pids)
	if err != nil {
		k.messages.log(err.Error())
		return
	}
	for _, e := range escaped {
		id, isTask := ids[e.PID]
		switch {
		case k.escaped[e.PID]:
		case isTask:
			k.messages.sayError(fmt.Sprintf("task %d: %s", k.tasks.ranks[id], e))
		default:
			k.messages.log(e.String() + ": it is not killed")
		}
		k.escaped[e.PID] = true
		if isTask {
			k.tasks.signal(id, sig)
		}
	}
}

// heldBack returns the ends of the tasks that are dead and whose parent is not notified:
// the end of a traced process is its tracer's first (ptrace(2)), and one that is
// stopped or hangs, outside of the step, keeps it for ever. The host waits for
// such a task inside the kernel and is of no use any more. It returns nil where a task
// that has not ended is none of them.
func (k *killer) heldBack() (ends []launch.TaskEnd) {
	var words []string
	for id := range k.tasks.list {
		p := &k.tasks.list[id]
		if p.phase == taskEnded {
			continue
		}
		tracer, status, ok := heldZombie(p.pid)
		if !ok {
			return nil
		}
		ends = append(ends, launch.TaskEnd{LocalID: id, Status: status})
		words = append(words, fmt.Sprintf("task %d (pid %d) is dead, and its tracer, pid %d %q, has not taken its end: it stays a zombie until that process ends or detaches",
			k.tasks.ranks[id], p.pid, tracer, procName(tracer)))
	}
	k.messages.sayProblems(words)
	return ends
}

// heldZombie returns how a zombie that is traced ended and its tracer. Its
// number cannot have come again: it is not reaped.
func heldZombie(pid int) (tracer int, status step.ExitStatus, ok bool) {
	word, _ := linux.Value(fmt.Sprintf("/proc/%d/status", pid), "TracerPid")
	tracer, _ = strconv.Atoi(word) // 0 is no process
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || tracer == 0 {
		return 0, 0, false
	}
	status, ok = parseZombie(stat)
	return tracer, status, ok
}

// parseZombie finds the wait status in the stat line of a zombie: field 52 of
// proc_pid_stat(5).
func parseZombie(stat []byte) (status step.ExitStatus, ok bool) {
	_, f := linux.ParseStat(stat)
	if len(f) < 50 || f[0] != "Z" {
		return 0, false
	}
	code, err := strconv.ParseUint(f[49], 10, 16)
	if err != nil {
		return 0, false
	}
	return step.ExitStatus(code), true
}

// signals are the signals that users and MPI plugins send. Any goroutine may use them.
type signals struct {
	plan       *Plan
	tracker    Tracker
	messages   *messages
	ledger     *ledger
	host       *hostProcess
	tasks      *taskTable
	suspension *suspension

	mu    sync.Mutex
	sent  uint64 // guarded by mu: a bit for each signal that was sent
	noted int    // guarded by mu: signals that the event log was to have
}

// Signal sends sig to the process of every task (scope "tasks" or ""), to the process of
// the step's first task alone ("leader"), or to every process of the step
// ("cgroup", of which "all" is the older name).
func (s *signals) Signal(sig int, scope string) error {
	if err := s.admit(sig); err != nil {
		return err
	}
	switch scope {
	case step.ScopeCgroup, "all":
		return s.host.signalTasks(syscall.Signal(sig))
	case "", step.ScopeTasks, step.ScopeLeader:
		s.send(sig, func(rank int) bool { return scope != step.ScopeLeader || rank == 0 })
		return nil
	}
	return fmt.Errorf("cannot send signal to scope %q: want leader, tasks or cgroup", scope)
}

// toRanks sends a signal to tasks of this node.
func (s *signals) toRanks(ranks []int, sig syscall.Signal) error {
	if err := s.admit(int(sig)); err != nil {
		return err
	}
	meant := make(map[int]bool, len(ranks))
	for _, r := range ranks {
		meant[r] = true
	}
	s.send(int(sig), func(rank int) bool { return meant[rank] })
	return nil
}

// admit returns why a signal cannot be sent now; else it notes that it is.
func (s *signals) admit(sig int) error {
	if sig < 1 || sig > 64 {
		return fmt.Errorf("cannot send signal %d: there is none of this number", sig)
	}
	if st := s.ledger.copy().State; st != step.Running {
		return fmt.Errorf("cannot send signal %d: the step is %s", sig, st)
	}
	if sig != int(unix.SIGKILL) && s.suspension.stands() {
		return fmt.Errorf("cannot send signal %d: the step is suspended", sig)
	}
	s.mu.Lock()
	s.sent |= 1 << uint(sig&63)
	s.mu.Unlock()
	return nil
}

// send sends sig to the tasks of the ranks that are meant.
func (s *signals) send(sig int, meant func(rank int) bool) {
	s.tasks.each(func(id, pidfd int) {
		if rank := s.plan.Ranks[id]; meant(rank) {
			s.note(rank, sig)
			_ = unix.PidfdSendSignal(pidfd, syscall.Signal(sig), nil, 0) // ESRCH: it has just ended
		}
	})
}

// wasSent reports whether sig was sent to tasks.
func (s *signals) wasSent(sig syscall.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent&(1<<uint(sig&63)) != 0
}

// signalsNoted is how many lines about signals the event log has of each task, on
// average: a user who signals in a loop does not fill the disk.
const signalsNoted = 64

// note writes a signal into the event log, unless that has too many of them.
func (s *signals) note(rank, sig int) {
	limit := signalsNoted * len(s.plan.Ranks)
	s.mu.Lock()
	s.noted++
	n := s.noted
	s.mu.Unlock()
	e := eventlog.Event{Event: eventlog.EventTaskSignal, Rank: &rank, Signal: &sig}
	switch {
	case n > limit:
		return
	case n == limit:
		e.Text = fmt.Sprintf("%d signals were noted: further ones are not", n)
	}
	s.messages.event(e)
}
