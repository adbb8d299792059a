package task

import (
	"sync"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// children is what stepd's one reaper has told: the host's end, and the ends
// of tasks that became stepd's children when the host died before them.
type children struct {
	chMu     sync.Mutex
	hostPID  int                     // guarded by chMu
	setUp    Host                    // guarded by chMu: nil until it was set up
	hostEnd  step.ExitStatus         // guarded by chMu, valid when hostGone is closed
	early    map[int]step.ExitStatus // guarded by chMu: ended before hostStarted
	ids      map[int]int             // guarded by chMu: task pid to local id
	pidfds   map[int]int             // guarded by chMu: local id to pidfd, while the task lives
	hostGone chan struct{}
	orphans  chan step.TaskEnd // as many as there are tasks: the reaper never blocks
}

func (c *children) init(ntasks int) {
	c.hostGone = make(chan struct{})
	c.orphans = make(chan step.TaskEnd, ntasks)
	c.early = make(map[int]step.ExitStatus)
}

// ChildEnded is called by the process's one reaper for every child of stepd,
// subreaped ones included.
func (s *Step) ChildEnded(pid int, status step.ExitStatus, usage *step.Usage) {
	s.chMu.Lock()
	defer s.chMu.Unlock()
	switch id, isTask := s.ids[pid]; {
	case s.hostPID == 0:
		s.early[pid] = status
	case pid == s.hostPID:
		s.hostEnd = status
		s.hostPID = -1 // the number may come again
		close(s.hostGone)
	case isTask:
		delete(s.ids, pid) // the number may come again
		s.orphans <- step.TaskEnd{LocalID: id, Status: status, Usage: usage}
	case s.d.Accounting != nil:
		s.d.Accounting.OrphanEnded(pid, usage)
	}
}

// hostStarted names the host; it may have ended already.
func (s *Step) hostStarted(pid int) {
	s.chMu.Lock()
	defer s.chMu.Unlock()
	s.hostPID = pid
	if status, ok := s.early[pid]; ok {
		s.hostEnd = status
		close(s.hostGone)
	}
	s.early = nil
}

// setUpHost is the host for goroutines beside Run's: nil before it was set up.
func (s *Step) setUpHost() Host {
	s.chMu.Lock()
	defer s.chMu.Unlock()
	return s.setUp
}

func (s *Step) hostIsSetUp() {
	s.chMu.Lock()
	defer s.chMu.Unlock()
	s.setUp = s.host
}

// hostStatus is the host's end; call it after hostGone.
func (s *Step) hostStatus() step.ExitStatus {
	s.chMu.Lock()
	defer s.chMu.Unlock()
	return s.hostEnd
}

// forkedTasks makes the tasks known to the reaper and to Signal.
func (s *Step) forkedTasks() {
	s.chMu.Lock()
	s.ids = make(map[int]int, len(s.tasks))
	s.pidfds = make(map[int]int, len(s.tasks))
	for id, t := range s.tasks {
		s.ids[t.pid] = id
		s.pidfds[id] = t.pidfd
	}
	s.chMu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.tasks {
		pid, rank := t.pid, s.rank(id)
		s.rec.Tasks[id].PID = &pid
		s.rec.Tasks[id].State = step.TaskStarting
		s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventTaskFork, Rank: &rank, PID: pid})
	}
}

// eachPidfd calls f for every task that has not ended; the descriptor stays
// valid during the call.
func (s *Step) eachPidfd(f func(id, pidfd int)) {
	s.chMu.Lock()
	defer s.chMu.Unlock()
	for id, fd := range s.pidfds {
		f(id, fd)
	}
}

// forget ends the use of a task's pidfd.
func (s *Step) forget(id int) {
	s.chMu.Lock()
	defer s.chMu.Unlock()
	if fd, ok := s.pidfds[id]; ok {
		unix.Close(fd)
		delete(s.pidfds, id)
	}
}

// closeTasks ends the use of all of them.
func (s *Step) closeTasks() {
	for id := range s.tasks {
		if s.pidfds == nil {
			unix.Close(s.tasks[id].pidfd) // fork failed half-way: EBADF for those that are not there
			continue
		}
		s.forget(id)
	}
}
