package task

import (
	"fmt"
	"syscall"

	"stepd/step"
)

// exitOOM is the step's exit code where a process was killed for want of memory
// and yet every task has ended well: SIG_OOM of slurm.h.
const exitOOM = 253

// oomKillsMax is how many kills a record keeps; all of them are told.
const oomKillsMax = 100

// OutOfMemory hears of a process that the kernel has killed. It may be called
// from any goroutine.
func (s *Step) OutOfMemory(k step.OOMKill) {
	text := k.String()
	s.mu.Lock()
	first := len(s.rec.OOM) == 0
	if len(s.rec.OOM) < oomKillsMax {
		s.rec.OOM = append(s.rec.OOM, k)
	}
	s.noteReason(text)
	s.mu.Unlock()
	s.d.Audience.Event(step.Event{Time: k.Time, Event: step.EventOOM, Rank: k.Rank, PID: k.PID, Text: text})
	s.sayError(text)
	if first && s.groupKillIsOurs() {
		s.sayError("all tasks of the step are killed with it (--oom-kill-step)")
		s.evictHost()
		if err := s.d.Tracker.Signal(syscall.SIGKILL); err != nil {
			s.d.Audience.Log(step.LogError, fmt.Sprintf("cannot kill the rest of the step: %v", err))
		}
	}
}

// groupKillIsOurs tells whether the tasks die together and the kernel does not
// see to it: cgroup v1 has no memory.oom.group.
func (s *Step) groupKillIsOurs() bool {
	c := &s.plan.Spec.Confine
	_, v1 := c.V1["memory"]
	return c.OOMGroup == step.OOMGroupStep && v1
}
