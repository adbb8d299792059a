package task

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// taskPhase is where Run's goroutine knows a task to be.
type taskPhase string

const (
	taskForked  taskPhase = "forked"  // no program of the user's runs
	taskExeced  taskPhase = "execed"  // it runs its command
	taskForeign taskPhase = "foreign" // a plugin's hook exec'd another program by itself
	taskEnded   taskPhase = "ended"
)

var taskMoves = moves[taskPhase]{
	taskForked:  {taskExeced, taskForeign, taskEnded},
	taskExeced:  {taskEnded},
	taskForeign: {taskEnded},
}

// process is a task's process.
type process struct {
	pid, pidfd int
	phase      taskPhase
	cause      string // why stepd killed it in a hook
}

// taskTable holds the step's tasks of this node, by local id. Its list is for Run's
// goroutine; the methods with a lock are for any.
type taskTable struct {
	ranks    []int
	list     []process // empty before the fork
	alive    int       // counts the tasks that were forked and have not ended
	starting int       // the local ids below have exec'd or ended
	launched bool      // every task has exec'd, or will not any more

	watch atomic.Pointer[execWatch] // nil before the fork

	execs   chan []int          // local ids whose exec pipes have ended
	ends    chan launch.TaskEnd // as the host reports them
	orphans chan launch.TaskEnd // of tasks that outlive the host; as many as tasks: the reaper never blocks

	mu     sync.Mutex
	ids    map[int]int // guarded by mu: pid to local id
	pidfds map[int]int // guarded by mu: local id to pidfd, while the task lives
}

func newTaskTable(ranks []int) *taskTable {
	return &taskTable{ranks: ranks, execs: make(chan []int), ends: make(chan launch.TaskEnd), orphans: make(chan launch.TaskEnd, len(ranks))}
}

// fill takes what the host has forked, and watches the execs.
func (t *taskTable) fill(forked []launch.Forked, watch *execWatch) (err error) {
	t.list = make([]process, len(t.ranks))
	for i := range t.list {
		t.list[i] = process{pidfd: -1, phase: taskForked}
	}
	for _, f := range forked {
		if f.LocalID >= len(t.list) || t.list[f.LocalID].pid != 0 {
			unix.Close(f.PidFD)
			unix.Close(f.Exec)
			err = errors.Join(err, fmt.Errorf("internal error: spankhost told task %d twice or beyond %d tasks", f.LocalID, len(t.list)))
			continue
		}
		t.list[f.LocalID].pid, t.list[f.LocalID].pidfd = f.PID, f.PidFD
		watch.pipes[f.Exec] = f.LocalID
	}
	if err == nil && len(forked) != len(t.list) {
		err = fmt.Errorf("internal error: spankhost forked %d of %d tasks", len(forked), len(t.list))
	}
	return err
}

// publish makes the tasks known to the reaper and to the senders of signals.
func (t *taskTable) publish() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.alive = len(t.list)
	t.ids = make(map[int]int, len(t.list))
	t.pidfds = make(map[int]int, len(t.list))
	for id := range t.list {
		t.ids[t.list[id].pid] = id
		t.pidfds[id] = t.list[id].pidfd
	}
}

// move changes the phase of a task.
func (t *taskTable) move(id int, to taskPhase) (err error) {
	p := &t.list[id]
	if p.phase, err = taskMoves.move(fmt.Sprintf("task %d", t.ranks[id]), p.phase, to); err != nil {
		return err
	}
	if to == taskEnded {
		t.alive--
		t.forget(id)
	}
	for t.starting < len(t.list) && t.list[t.starting].phase != taskForked {
		t.starting++
	}
	if t.starting == len(t.list) {
		t.launched = true
	}
	return nil
}

// gone reports whether every task has exec'd, or will not any more, as the kernel knows it: a
// task's program may act before Run's goroutine knows of its exec. Any goroutine may call it.
func (t *taskTable) gone() bool {
	watch := t.watch.Load()
	return watch != nil && !watch.pending()
}

// pids are the processes, by local id.
func (t *taskTable) pids() []int {
	pids := make([]int, len(t.list))
	for id := range t.list {
		pids[id] = t.list[id].pid
	}
	return pids
}

// childEnded is called by the reaper: it reports whether the child is a task.
func (t *taskTable) childEnded(pid int, status step.ExitStatus, usage *launch.Usage) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, ok := t.ids[pid]
	if ok {
		delete(t.ids, pid) // the number may come again
		t.orphans <- launch.TaskEnd{LocalID: id, Status: status, Usage: usage}
	}
	return ok
}

// orphan is the end of a task that the reaper has reported, if there is one yet.
func (t *taskTable) orphan() (e launch.TaskEnd, ok bool) {
	select {
	case e = <-t.orphans:
		return e, true
	default:
		return e, false
	}
}

// each calls f for every task that has not ended; the descriptor stays
// valid during the call.
func (t *taskTable) each(f func(id, pidfd int)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, fd := range t.pidfds {
		f(id, fd)
	}
}

// living reports whether the process of a task lives.
func (t *taskTable) living() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, fd := range t.pidfds {
		if exited, err := linux.PidfdExited(fd); err != nil || !exited {
			return true
		}
	}
	return false
}

// signal sends sig to one task, if it lives.
func (t *taskTable) signal(id int, sig syscall.Signal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if pidfd, ok := t.pidfds[id]; ok {
		_ = unix.PidfdSendSignal(pidfd, sig, nil, 0) // ESRCH: it has just ended
	}
}

// TaskStream is a copy of what the task of a rank of this node has as descriptor
// fd just now, which the caller closes: a step that the task spawns writes there.
// It may be called from any goroutine. It is a number, so that the
// blocking mode of a file that others share does not change.
func (s *Step) TaskStream(rank, fd int) (int, error) {
	id, ours := s.plan.localID(rank)
	s.tasks.mu.Lock()
	defer s.tasks.mu.Unlock()
	pidfd, ok := s.tasks.pidfds[id]
	if !ours || !ok {
		return -1, fmt.Errorf("cannot take descriptor %d of task %d: it has ended", fd, rank)
	}
	// A pidfd that is readable is dead or a zombie: it has no descriptors.
	copied, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot take descriptor %d of task %d: pidfd_getfd: %w", fd, rank, err)
	}
	return copied, nil
}

// forget ends the use of a task's pidfd.
func (t *taskTable) forget(id int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fd, ok := t.pidfds[id]; ok {
		unix.Close(fd)
		delete(t.pidfds, id)
	}
}

// close ends the use of all of them.
func (t *taskTable) close() error {
	for id := range t.list {
		if t.pidfds == nil {
			unix.Close(t.list[id].pidfd) // fork failed half-way: EBADF for tasks that do not exist
			continue
		}
		t.forget(id)
	}
	return nil
}

// pidfdStatus is the end of a process that another process has reaped while the
// descriptor was open. ok is false where it is not known: the process lives,
// or the kernel is older than 6.15.
func pidfdStatus(pidfd int) (status step.ExitStatus, ok bool) {
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := linux.IgnoringEINTR(func() error { return unix.IoctlPidfdInfo(pidfd, &info) })
	if err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return 0, false
	}
	return step.ExitStatus(info.Exit_code), true
}

// execWatch reports when tasks exec: each holds the write end of a pipe that
// execve closes. One goroutine watches all of them, and no thread waits in the kernel.
type execWatch struct {
	mu    sync.Mutex
	pipes map[int]int // guarded by mu: descriptor to local id
	ctx   context.Context
	end   context.CancelFunc
	wg    sync.WaitGroup
}

func newExecWatch() *execWatch {
	w := &execWatch{pipes: make(map[int]int)}
	w.ctx, w.end = context.WithCancel(context.Background())
	return w
}

// start reports the local ids whose pipes have ended, several at a time, until all
// have or close is called.
func (w *execWatch) start(execs chan<- []int) error {
	// One shot: closing the descriptor does not end the watch, since tasks
	// that were forked later hold the same description until they exec.
	poller, err := linux.NewPoller(unix.EPOLLIN|unix.EPOLLONESHOT, slices.Collect(maps.Keys(w.pipes))...)
	if err != nil {
		return fmt.Errorf("cannot watch the tasks' execs: %w", err)
	}
	w.wg.Go(func() {
		defer poller.Close()
		_ = poller.Wait(w.ctx, func(ended []int) (bool, error) { // its error is close's
			return w.report(ended, execs), nil
		})
	})
	return nil
}

// report sends the local ids whose pipes have ended. It reports whether they were the last.
func (w *execWatch) report(ended []int, execs chan<- []int) bool {
	ids := make([]int, len(ended))
	w.mu.Lock()
	for i, fd := range ended {
		ids[i] = w.pipes[fd]
		delete(w.pipes, fd)
		unix.Close(fd)
	}
	last := len(w.pipes) == 0
	w.mu.Unlock()
	if len(ids) > 0 {
		select {
		case execs <- ids:
		case <-w.ctx.Done():
		}
	}
	return last
}

// pending reports whether a task has its pipe yet: it has not exec'd, and lives.
func (w *execWatch) pending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for fd := range w.pipes {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0); n == 0 && err == nil {
			return true
		}
	}
	return false
}

// close ends the watch and closes what is left.
func (w *execWatch) close() error {
	w.end()
	w.wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	for fd := range w.pipes {
		unix.Close(fd)
	}
	clear(w.pipes)
	return nil
}
