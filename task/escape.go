package task

import (
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// signalEscaped sends sig to those tasks that are not in the step's cgroups any
// more: what acts on those does not reach them. Each is told of once. What
// descends from the tasks and has gone is told of, and left alone: whoever has
// moved it there may want it to live on.
func (s *Step) signalEscaped(sig syscall.Signal) {
	ids := make(map[int]int, len(s.tasks))
	var pids []int
	for id := range s.tasks {
		if t := &s.tasks[id]; t.pid != 0 && !t.ended {
			ids[t.pid] = id
			pids = append(pids, t.pid)
		}
	}
	escaped, err := s.d.Tracker.Escaped(pids)
	if err != nil {
		s.d.Audience.Log(step.LogError, err.Error())
		return
	}
	for _, e := range escaped {
		id, isTask := ids[e.PID]
		s.tellEscape(e, id, isTask)
		if isTask {
			s.signalTask(id, sig)
		}
	}
}

func (s *Step) tellEscape(e step.Escape, id int, isTask bool) {
	if s.escaped[e.PID] {
		return
	}
	if s.escaped == nil {
		s.escaped = make(map[int]bool)
	}
	s.escaped[e.PID] = true
	if !isTask {
		s.d.Audience.Log(step.LogError, e.String()+": it is not killed")
		return
	}
	s.sayError(fmt.Sprintf("task %d: %s", s.rank(id), e))
}

func (s *Step) signalTask(id int, sig syscall.Signal) {
	s.eachPidfd(func(i, pidfd int) {
		if i == id {
			_ = unix.PidfdSendSignal(pidfd, sig, nil, 0) // ESRCH: it has just ended
		}
	})
}
