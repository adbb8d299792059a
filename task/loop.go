package task

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// settleAfter is how long a step lives before its host leaves the tasks' cgroup, and
// before noded hears which tasks have exec'd: a short step is over before the move is
// worth its 10 ms, and one record serves all tasks. It is also the least time between two
// such records.
const settleAfter = 100 * time.Millisecond

// following is what the loop of a running step waits for, besides what comes to the
// step itself.
type following struct {
	// waited answers when the host has reaped all tasks, or is gone; nil once it has.
	waited chan error
	// noChildren is closed when stepd has no child any more; nil while the host lives.
	noChildren <-chan struct{}
	// cancelled is the step's, nil once it was heard.
	cancelled <-chan struct{}

	term   terminator
	limit  *timeLimit
	hooks  *hookWatch
	settle *time.Timer
	due    bool // settle runs
	// evicting: the kernel may take 10 ms for it, and the loop has none to spare.
	evicting sync.WaitGroup
	done     chan struct{} // closed with the loop
}

func (s *Step) newFollowing() *following {
	f := &following{
		waited: make(chan error, 1), cancelled: s.cancelled, limit: s.newTimeLimit(),
		hooks: newHookWatch(s.plan.Spec.Spank.HookTimeoutS), settle: time.NewTimer(settleAfter), due: true, done: make(chan struct{}),
	}
	go func() {
		f.waited <- s.host.Wait(func(e step.TaskEnd) {
			select {
			case s.ends <- e:
			case <-f.done:
			}
		}, s.trackEpilog)
	}()
	return f
}

func (f *following) stop() {
	f.limit.stop()
	f.term.stop()
	f.hooks.stop()
	f.evicting.Wait()
	f.settle.Stop()
	close(f.done)
}

// follow is the loop that owns the running step: it hears of execs, ends,
// requests and the host's death until the last task has ended.
func (s *Step) follow() error {
	s.started()
	f := s.newFollowing()
	defer f.stop()
	for s.alive > 0 {
		if err := s.followNext(f); err != nil {
			return err
		}
	}
	if f.waited == nil || s.hostBusy {
		return nil
	}
	// The next command may be sent only when this one was answered.
	err := <-f.waited
	if errors.Is(err, step.ErrHostGone) {
		return s.hostDied()
	}
	s.waitFailed(err)
	return nil
}

// followNext waits for one thing to happen and does what it asks for. Its error ends
// the step.
func (s *Step) followNext(f *following) error {
	select {
	case ids := <-s.execs:
		for _, id := range ids {
			s.taskExeced(id)
		}
	case e := <-s.ends:
		s.taskEnded(e)
	case e := <-s.orphans:
		s.taskEnded(e)
	case err := <-f.waited:
		f.waited = nil
		return s.hostAnswered(f, err)
	case <-f.noChildren:
		f.noChildren = s.loseTasks()
	case <-f.settle.C:
		f.due = false
		f.evicting.Go(s.evictHost)
	case <-f.cancelled:
		f.cancelled = nil
		s.beginTermination(&f.term) // before it is told: a slow reader must not delay it
		s.sayCancelled(s.endedBy())
	case <-f.term.c:
		return s.nextTermination(&f.term)
	case <-f.limit.c:
		s.checkTime(f.limit)
	case <-f.hooks.c:
		s.checkHost(f.hooks)
		s.checkTasks(f.hooks)
	}
	s.tellTasks(f)
	return nil
}

// tellTasks tells noded which tasks have exec'd, or could not, where it has not heard of
// all of them and nothing was told for a while.
func (s *Step) tellTasks(f *following) {
	if !s.untold || f.due {
		return
	}
	s.untold = false
	s.mu.Lock()
	s.addFailures()
	s.mu.Unlock()
	s.d.Audience.Progress(s.Record())
	f.settle.Reset(settleAfter)
	f.due = true
}

// hostAnswered is called when the host waits no longer although tasks live: it is
// gone, and they are stepd's own children now, or it has not told of all, since a
// plugin may have waited for a task of ours.
func (s *Step) hostAnswered(f *following, err error) error {
	if !errors.Is(err, step.ErrHostGone) {
		s.waitFailed(err)
		s.endRest(err)
		return nil
	}
	if err := s.hostDied(); err != nil {
		return err
	}
	f.noChildren = s.d.NoChildren()
	return nil
}

// waitFailed tells what went wrong while the tasks were reaped. It does not
// change the step's end: a negative slurm_spank_task_exit does not, either
// (failure table of spank(8)).
func (s *Step) waitFailed(err error) {
	if err == nil {
		return
	}
	if hook, ok := errors.AsType[*step.HookError](err); ok && hook.Rank != nil {
		s.sayError(fmt.Sprintf("Unable to spank task %d at exit", *hook.Rank))
		s.strictFailure(err)
		return
	}
	s.sayError(err.Error()) // a status that is lost is the step's reason then
}

// loseTasks is called when stepd has no children any more. Statuses that the
// reaper has just taken are told after that, before its next round; those that
// are missing then went with the host.
func (s *Step) loseTasks() (again <-chan struct{}) {
	if !s.childless {
		s.childless = true
		return s.d.NoChildren()
	}
	for {
		select {
		case e := <-s.orphans:
			s.taskEnded(e)
			continue
		default:
		}
		break
	}
	s.endRest(nil)
	return nil
}

// started says that all tasks were let go.
func (s *Step) started() {
	now := s.d.Now()
	s.mu.Lock()
	s.rec.Started = &now
	s.mu.Unlock()
	s.setState(step.Running)
}

// taskExeced hears that a task's exec pipe has ended: it exec'd, or it died.
func (s *Step) taskExeced(id int) {
	t := &s.tasks[id]
	if t.ended {
		return
	}
	place := s.host.Where(id)
	switch {
	case place.AtExec && place.Errno == 0:
	case place.InHook() && s.runsOther(t.pid):
		// The hook exec'd by itself, as a container runtime's plugin may.
		t.hookExeced = true
	default:
		return // it died or failed before, and its end will come
	}
	t.execed, s.untold = true, true
	s.countLaunched()
	s.mu.Lock()
	s.rec.Tasks[id].State = step.TaskRunning
	s.mu.Unlock()
	rank := s.rank(id)
	s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventTaskExec, Rank: &rank, PID: t.pid})
	s.tellLaunched()
}

// countLaunched notes when no task is on its way to exec any more.
func (s *Step) countLaunched() {
	for id := s.onTheWay; id < len(s.tasks); id++ {
		if s.onTheWay = id; !s.tasks[id].execed && !s.tasks[id].ended {
			return
		}
	}
	s.mu.Lock()
	s.launched = true
	s.mu.Unlock()
}

// taskEnded records an end and does what the step's options ask for.
func (s *Step) taskEnded(e step.TaskEnd) {
	t, rank := &s.tasks[e.LocalID], s.rank(e.LocalID)
	if t.ended {
		return
	}
	t.ended = true
	s.alive--
	s.countLaunched()
	s.forget(e.LocalID)
	if e.Lost {
		if s.d.Accounting != nil {
			s.d.Accounting.TaskEnded(e)
		}
		s.mu.Lock()
		s.rec.Tasks[e.LocalID].State = step.TaskExited
		s.noteReason(fmt.Sprintf("the exit status of task %d was lost", rank))
		s.mu.Unlock()
		return
	}
	status, crash := s.recordEnd(e)
	if crash != "" {
		s.say(crash)
	}
	if place := s.host.Where(e.LocalID); !t.execed && place.AtExec && place.Errno == 0 {
		// A short task's end may be heard before its exec.
		s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventTaskExec, Rank: &rank, PID: t.pid})
	}
	st := e.Status
	s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventTaskExit, Rank: &rank, PID: t.pid, Status: &st})
	s.postTerm(e)
	s.tellLaunched()
	s.d.Audience.TaskExited(rank, status)
	if s.d.MPI != nil {
		s.d.MPI.TaskExited(rank, e.Status)
	}
	if s.plan.Spec.KillOnBadExit && status != 0 {
		s.endBadly(rank, status)
	}
}

// recordEnd writes the end into the record. The returned status is the one
// that counts for the step: a task that died in a hook, and so was never
// exec'd, counts as exit code 1, and said tells of it.
func (s *Step) recordEnd(e step.TaskEnd) (status step.ExitStatus, said string) {
	place := s.host.Where(e.LocalID)
	crash, inHook := s.host.Crash(e.LocalID, hookEnd(e.Status, s.tasks[e.LocalID].cause))
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.rec.Tasks[e.LocalID]
	t.End(e.Status)
	if s.d.Accounting != nil {
		s.d.Accounting.TaskEnded(e)
	}
	if e.Usage != nil {
		rss, cpu := e.Usage.MaxRSSBytes, (e.Usage.User + e.Usage.System).Seconds()
		t.MaxRSSBytes, t.CPUSeconds = &rss, &cpu
	}
	if (place.AtExec && place.Errno == 0) || (s.tasks[e.LocalID].hookExeced && s.tasks[e.LocalID].cause == "") {
		return e.Status, ""
	}
	t.State, t.Stage, t.Errno = step.TaskFailed, place.Stage, place.Errno
	s.untold = true
	if sig, ok := e.Status.Signaled(); !inHook || (ok && s.tasks[e.LocalID].cause == "" && s.killedByUs(sig)) {
		return e.Status, ""
	}
	s.noteReason(crash.Error())
	s.noteCrash(crash)
	one := 1
	t.ExitCode, t.Signal = &one, nil
	return step.ExitedWith(1), crash.Error()
}

// runsOther tells whether the process runs another program than the host. A
// process that is dying has closed its pipes and runs none: its pidfd cannot
// tell, since that becomes readable only later.
func (s *Step) runsOther(pid int) bool {
	exe := func(pid int) (st unix.Stat_t, ok bool) {
		return st, unix.Stat(fmt.Sprintf("/proc/%d/exe", pid), &st) == nil
	}
	task, ok1 := exe(pid)
	host, ok2 := exe(s.host.PID())
	return ok1 && ok2 && (task.Dev != host.Dev || task.Ino != host.Ino)
}

// lookupStatus is ld.so's exit status where it cannot bind a call.
const lookupStatus = 127

// hookEnd words how a process ended inside a hook.
func hookEnd(st step.ExitStatus, cause string) string {
	if cause != "" {
		return cause
	}
	if sig, ok := st.Signaled(); ok {
		return "killed by " + signalName(sig)
	}
	code, _ := st.Exited()
	if code == lookupStatus {
		return fmt.Sprintf("called exit(%d), as ld.so does where a function is missing", code)
	}
	return fmt.Sprintf("called exit(%d)", code)
}
