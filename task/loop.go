package task

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// settleAfter is how long a step lives before noded hears which tasks have exec'd: a short
// step is over by then, and one record serves all tasks. It is also the least time between two
// such records.
const settleAfter = 100 * time.Millisecond

// evictAfter is how long a step lives before its host leaves the tasks' cgroup. For the move the
// kernel waits up to 30 ms (cgroup_threadgroup_rwsem, which asks for a grace period), and all that
// make or remove a cgroup meanwhile wait with it, the step's own end included. What comes after
// report.TrimAfter would bring pages of the program back.
const evictAfter = 200 * time.Millisecond

// loop owns the running step: it receives execs, ends, requests and the host's death
// until the last task has ended.
type loop struct {
	*Step

	// waited answers when the host has reaped all tasks, or is dead; nil once it has.
	waited chan error
	// noChildren is closed when stepd has no child any more; nil while the host lives.
	noChildren <-chan struct{}
	childless  bool // it was closed once
	// cancelled is the step's, nil once it was heard.
	cancelled <-chan struct{}

	kill   deadline // the next signal of the step's end
	killed bool     // SIGKILL was sent
	limit  *timeLimit
	hooks  *hookWatch
	settle *time.Timer
	due    bool // settle runs
	evict  *time.Timer
	// unreported: tasks have exec'd, or failed to, and noded does not know it yet.
	unreported     bool
	launchReported bool // to the step that has spawned this one
	stops          *stopWatch
	// unheard is closed when the tasks have ended of which a stopped host tells nothing; nil where
	// it was not stopped. halt ends the wait for them.
	unheard chan struct{}
	halt    context.CancelFunc
	// helpers evict the host, for which the kernel may take 30 ms, and wait for unheard.
	helpers sync.WaitGroup
	// prolog is when the tasks' prologs began, nil where there are none or all are over.
	prolog  *time.Time
	epilogs epilogs
	done    chan struct{} // closed with the loop
}

// epilogs are the tasks whose epilogs run. Host.Wait's goroutine adds to them and the loop removes.
type epilogs struct {
	mu    sync.Mutex
	ids   map[int]bool // guarded by mu: local ids
	began time.Time    // guarded by mu: when the first of ids was added
}

func (e *epilogs) begin(id int, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.ids) == 0 {
		e.ids, e.began = make(map[int]bool), now
	}
	e.ids[id] = true
}

// end removes tasks. If no epilog runs any more, ok is true and began is when the first one began.
func (e *epilogs) end(ids ...int) (began time.Time, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before := len(e.ids)
	for _, id := range ids {
		delete(e.ids, id)
	}
	return e.began, before > 0 && len(e.ids) == 0
}

// all are the local ids of the tasks whose epilogs run.
func (e *epilogs) all() []int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.ids))
}

// deadline is a time that something is due; c is nil where nothing is.
type deadline struct{ c <-chan time.Time }

func (d *deadline) in(t time.Duration) { d.c = time.After(t) }
func (d *deadline) stop()              { d.c = nil }

// newLoop begins with the tasks, which were started just now.
func newLoop(s *Step) *loop {
	now := s.d.Now()
	s.ledger.write(func(rec *step.Record) { rec.Started = &now })
	s.ledger.setState(step.Running)
	l := &loop{
		Step: s, waited: make(chan error, 1), cancelled: s.causes.cancelled, limit: newTimeLimit(s.plan.Spec),
		hooks: newHookWatch(s.plan.Spec.Spank.HookTimeoutS), stops: newStopWatch(s.host), halt: func() {}, settle: time.NewTimer(settleAfter), due: true,
		evict: time.NewTimer(evictAfter), done: make(chan struct{}),
	}
	if slices.ContainsFunc(taskScripts(s.plan.Spec), func(script launch.TaskScript) bool { return !script.Epilog }) {
		l.prolog = &now
		l.messages.event(eventlog.Event{Time: now, Event: eventlog.EventStageStart, Phase: eventlog.PhaseTaskProlog})
	}
	go func() {
		l.waited <- s.host.Wait(func(e launch.TaskEnd) {
			select {
			case s.tasks.ends <- e:
			case <-l.done:
			}
		}, l.trackEpilog)
	}()
	return l
}

func (l *loop) stop() {
	if l.prolog != nil { // the step's end did not wait for it
		l.messages.span(eventlog.PhaseTaskProlog, *l.prolog, nil)
	}
	l.endEpilogs(l.epilogs.all()...)
	l.limit.stop()
	l.kill.stop()
	l.hooks.stop()
	l.stops.End()
	l.halt()
	l.helpers.Wait()
	l.settle.Stop()
	l.evict.Stop()
	close(l.done)
}

// run returns when the last task has ended, or with the error that ends the step.
func (l *loop) run() error {
	defer l.stop()
	for l.tasks.alive > 0 {
		if err := l.next(); err != nil {
			return err
		}
	}
	if l.waited == nil || l.host.is(hostBusy) {
		return nil
	}
	// The next command may be sent only when this one was answered.
	defer l.host.guard()()
	err := <-l.waited
	if errors.Is(err, launch.ErrHostGone) {
		return l.hostDied()
	}
	l.waitFailed(err)
	return nil
}

// endProlog notes the end of the tasks' prologs when the last task has exec'd, or ended.
func (l *loop) endProlog() {
	if l.prolog != nil && l.tasks.launched {
		l.messages.span(eventlog.PhaseTaskProlog, *l.prolog, nil)
		l.prolog = nil
	}
}

// endEpilogs notes the end of tasks' epilogs when none runs any more.
func (l *loop) endEpilogs(ids ...int) {
	if began, ok := l.epilogs.end(ids...); ok {
		l.messages.span(eventlog.PhaseTaskEpilog, began, nil)
	}
}

// next waits for one thing to happen and does what it asks for. Its error ends
// the step.
func (l *loop) next() error {
	select {
	case ids := <-l.tasks.execs:
		for _, id := range ids {
			l.taskExeced(id)
		}
	case e := <-l.tasks.ends:
		l.taskEnded(e)
	case e := <-l.tasks.orphans:
		l.taskEnded(e)
	case err := <-l.waited:
		l.waited = nil
		return l.hostAnswered(err)
	case <-l.noChildren:
		l.loseTasks()
	case <-l.settle.C:
		l.due = false
	case <-l.evict.C:
		l.helpers.Go(l.host.evict)
	case <-l.stops.MayBe:
		l.mayBeStopped()
	case <-l.unheard:
		l.unheard = nil
		l.stops.look()
	case <-l.stops.Late:
		l.stops.kill()
	case <-l.cancelled:
		l.cancelled = nil
		l.kill.in(l.killer.terminate()) // before it is reported: a slow reader must not delay it
		l.messages.sayCancelled(l.causes.endedBy())
	case <-l.kill.c:
		return l.killRest()
	case <-l.limit.c:
		l.checkTime(l.limit)
	case <-l.hooks.c:
		l.hooks.checkHost(l.host)
		l.checkTasks()
	}
	l.reportTasks()
	return nil
}

// killRest is called when the tasks' time to end by themselves is over, and once more
// when all of them are dead and the host has not said so.
func (l *loop) killRest() error {
	l.kill.stop()
	if !l.killed {
		l.killed = true
		if err := l.killer.kill(); err != nil {
			l.host.giveUp() // it still waits, and can take no other command
			return err
		}
		l.kill.in(time.Duration(max(1, l.plan.Spec.KillWaitS)) * time.Second)
		return nil
	}
	if held := l.killer.heldBack(); held != nil {
		l.host.giveUp()
		for _, e := range held {
			l.taskEnded(e)
		}
		return nil
	}
	// The tasks are dead, and a host that is not in a hook has reported their ends.
	l.host.blame("did not tell the tasks' ends " + afterCancel)
	l.host.Kill()
	return nil
}

// reportTasks reports to noded which tasks have exec'd, or could not, where it does
// not know all of them and nothing was reported for a while.
func (l *loop) reportTasks() {
	if !l.unreported || l.due {
		return
	}
	l.unreported = false
	l.ledger.addFailures()
	l.d.Audience.Progress(l.Record())
	l.settle.Reset(settleAfter)
	l.due = true
}

// hostAnswered is called when the host waits no longer although tasks live: it is
// dead, and they are stepd's own children now, or it has not reported all, since a
// plugin may have waited for a task of ours.
func (l *loop) hostAnswered(err error) error {
	if !errors.Is(err, launch.ErrHostGone) {
		l.waitFailed(err)
		l.endRest(err)
		return nil
	}
	if err := l.hostDied(); err != nil {
		return err
	}
	l.noChildren = l.d.NoChildren()
	return nil
}

// waitFailed reports what went wrong while the tasks were reaped. It does not
// change the step's end: a negative slurm_spank_task_exit does not, either
// (failure table of spank(8)).
func (l *loop) waitFailed(err error) {
	if err == nil {
		return
	}
	if hook, ok := errors.AsType[*launch.HookError](err); ok && hook.Rank != nil {
		l.messages.sayError(fmt.Sprintf("Unable to spank task %d at exit", *hook.Rank))
		l.host.strictFailure(err)
		return
	}
	l.messages.sayError(err.Error()) // a status that is lost is the step's reason then
}

// loseTasks is called when stepd has no children any more. Statuses that the
// reaper has just taken are reported after that, before its next round; those that
// are missing then went with the host.
func (l *loop) loseTasks() {
	if !l.childless {
		l.childless = true
		l.noChildren = l.d.NoChildren()
		return
	}
	l.noChildren = nil
	for e, ok := l.tasks.orphan(); ok; e, ok = l.tasks.orphan() {
		l.taskEnded(e)
	}
	l.endRest(nil)
}

// endRest ends the tasks whose ends are not reported any more. A new kernel
// still knows the status; else it is lost, and why is the step's reason.
func (l *loop) endRest(why error) {
	for id := range l.tasks.list {
		if l.tasks.list[id].phase == taskEnded {
			continue
		}
		e := launch.TaskEnd{LocalID: id, Lost: true}
		if status, ok := pidfdStatus(l.tasks.list[id].pidfd); ok {
			e = launch.TaskEnd{LocalID: id, Status: status}
		} else if why != nil {
			l.ledger.noteReason(why.Error())
		}
		l.taskEnded(e)
	}
}

// checkTasks kills the tasks that are in a hook for too long. Of a step that stands still
// none is.
func (l *loop) checkTasks() {
	rec := l.Record()
	if rec.Suspended != nil {
		return
	}
	still := time.Duration(rec.SuspendedSeconds * float64(time.Second))
	for id := range l.tasks.list {
		p := &l.tasks.list[id]
		if p.phase == taskEnded || p.phase == taskForeign || !l.hooks.overdue(l.host.Where(id), still) {
			continue
		}
		p.cause = l.hooks.cause()
		l.tasks.signal(id, unix.SIGKILL)
	}
}

// taskExeced is called when a task's exec pipe has ended: it exec'd, or it died.
func (l *loop) taskExeced(id int) {
	p := &l.tasks.list[id]
	if p.phase == taskEnded {
		return
	}
	phase := taskExeced
	switch place := l.host.Where(id); {
	case place.AtExec && place.Errno == 0:
	case place.InHook() && l.runsOther(p.pid):
		// The hook exec'd by itself, as a container runtime's plugin may.
		phase = taskForeign
	default:
		return // it died or failed before, and its end will come
	}
	l.move(id, phase)
	l.unreported = true
	l.ledger.write(func(rec *step.Record) { rec.Tasks[id].State = step.TaskRunning })
	l.messages.event(eventlog.Event{Event: eventlog.EventTaskExec, Rank: &l.plan.Ranks[id], PID: p.pid})
	l.endProlog()
	l.reportLaunched()
}

// move changes the phase of a task; an illegal move is logged and changes nothing.
func (s *Step) move(id int, to taskPhase) {
	if err := s.tasks.move(id, to); err != nil {
		s.messages.log(err.Error())
	}
}

// runsOther reports whether the process runs another program than the host. A
// process that is dying has closed its pipes and runs none: its pidfd does not
// help, since that becomes readable only later.
func (l *loop) runsOther(pid int) bool {
	exe := func(pid int) (st unix.Stat_t, ok bool) {
		return st, unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st) == nil
	}
	task, ok1 := exe(pid)
	host, ok2 := exe(l.host.PID())
	return ok1 && ok2 && (task.Dev != host.Dev || task.Ino != host.Ino)
}

// taskEnded records an end and does what the step's options ask for.
func (l *loop) taskEnded(e launch.TaskEnd) {
	p, rank := &l.tasks.list[e.LocalID], l.plan.Ranks[e.LocalID]
	was := p.phase
	if was == taskEnded {
		return
	}
	l.hookErrors.flush() // task_exit's
	l.move(e.LocalID, taskEnded)
	l.endEpilogs(e.LocalID)
	if e.Lost {
		l.d.Accounting.TaskEnded(e)
		l.ledger.write(func(rec *step.Record) {
			rec.Tasks[e.LocalID].State = step.TaskExited
			firstReason(rec, fmt.Sprintf("the exit status of task %d was lost", rank))
		})
		l.endProlog()
		l.reportLaunched()
		return
	}
	status, failed, crash := l.recordEnd(e, was)
	l.unreported = l.unreported || failed
	if crash != nil {
		l.messages.crashed(crash)
	}
	if was == taskForked && !failed {
		// A short task's end may be heard before its exec.
		l.messages.event(eventlog.Event{Event: eventlog.EventTaskExec, Rank: &rank, PID: p.pid})
	}
	l.messages.event(eventlog.Event{Event: eventlog.EventTaskExit, Rank: &rank, PID: p.pid, Status: &e.Status})
	l.plugins.postTerm(e)
	l.endProlog()
	l.reportLaunched()
	l.d.Audience.TaskExited(rank, status)
	if l.d.MPI != nil {
		l.d.MPI.TaskExited(l.plan.Spec.SeenRank(rank), e.Status)
	}
	if l.plan.Spec.KillOnBadExit && status != 0 {
		l.endBadly(rank, status)
	}
}

// recordEnd writes the end of a task, which was in a phase before it, into the record. The
// returned status is the one that counts for the step: a task that was killed in a hook
// counts as exit code 1, one whose hook has called exit(n) as n, as in Slurm, and crash
// says so, nil of any other end. failed: it has run no program.
func (s *Step) recordEnd(e launch.TaskEnd, was taskPhase) (status step.ExitStatus, failed bool, crash *launch.HookError) {
	place, killed := s.host.Where(e.LocalID), s.tasks.list[e.LocalID].cause
	hook, inHook := s.host.Crash(e.LocalID, hookEnd(e.Status, killed))
	sig, signaled := e.Status.Signaled()
	if signaled && killed == "" && (s.wasSent(sig) || s.causes.terminated(sig)) {
		inHook = false // a plugin is not to blame for it
	}
	failed = (!place.AtExec || place.Errno != 0) && (was != taskForeign || killed != "")
	status = e.Status
	if failed && inHook && signaled {
		status = step.ExitedWith(1)
	}
	s.d.Accounting.TaskEnded(e)
	s.ledger.write(func(rec *step.Record) {
		t := &rec.Tasks[e.LocalID]
		t.End(e.Status)
		if e.Usage != nil {
			t.MaxRSSBytes, t.CPUSeconds = new(e.Usage.MaxRSSBytes), new((e.Usage.User + e.Usage.System).Seconds())
		}
		if !failed {
			return
		}
		t.State, t.Stage, t.Errno = step.TaskFailed, place.Stage, place.Errno
		if inHook {
			firstReason(rec, hook.Error())
			noteCrash(rec, hook)
			code, _ := status.Exited()
			t.ExitCode, t.Signal = &code, nil
		}
	})
	if failed && inHook {
		crash = hook
	}
	return status, failed, crash
}

// trackEpilog puts the process of a task's epilog where the task was, so that it
// ends with the step. It is called by the goroutine of Host.Wait.
func (l *loop) trackEpilog(localID, pid int) error {
	if localID < 0 || localID >= len(l.plan.Ranks) {
		return fmt.Errorf("internal error: spankhost told an epilog of task %d beyond %d tasks", localID, len(l.plan.Ranks))
	}
	rank := l.plan.Ranks[localID]
	l.epilogs.begin(localID, l.d.Now())
	err := l.d.Tracker.Add(rank, pid)
	if err != nil {
		l.messages.log(fmt.Sprintf("cannot run the epilog of task %d: %v", rank, err))
	}
	return err
}

// timeLimit is how long the tasks may run, and when they are warned. Only the loop
// uses it.
type timeLimit struct {
	deadline
	limit time.Duration // 0 is none
	warn  time.Duration // how long they run before; below 0 is never
}

// newTimeLimit begins to count: the tasks have just been started.
func newTimeLimit(spec *step.Spec) *timeLimit {
	l := &timeLimit{limit: time.Duration(spec.TimeLimitS) * time.Second, warn: -1}
	if l.limit == 0 {
		return l
	}
	if w := spec.Warn; w != nil && w.Batch == isBatch(spec) {
		l.warn = max(0, l.limit-time.Duration(w.BeforeS)*time.Second)
	}
	l.in(l.next())
	return l
}

// next is how long the tasks run until something is due.
func (l *timeLimit) next() time.Duration {
	if l.warn >= 0 {
		return l.warn
	}
	return l.limit
}

// leastWait bounds how often the clock is looked at while a step is suspended,
// which does not count as run.
const leastWait = time.Second

// checkTime is called when something may be due.
func (s *Step) checkTime(l *timeLimit) {
	rec := s.Record()
	ran, _ := rec.Ran(s.d.Now())
	if left := l.next() - ran; left > 0 {
		if rec.Suspended != nil {
			left = max(left, leastWait)
		}
		l.in(left)
		return
	}
	if l.warn >= 0 {
		l.warn = -1
		if err := s.Signal(s.plan.Spec.Warn.Signal, step.ScopeTasks); err != nil {
			s.messages.log("--signal: " + err.Error())
		}
		l.in(max(0, l.limit-ran))
		return
	}
	l.stop()
	s.end(cause{kind: byTime, reason: fmt.Sprintf("its time limit of %v has come (--time)", l.limit)})
}
