package task

import (
	"fmt"

	"stepd/step"
)

// exitOOM is the step's exit code where a process was killed for want of memory
// and yet every task has ended well: SIG_OOM of slurm.h.
const exitOOM = 253

// A record keeps oomKillsMax kills, and oomToldMax are told: a script that goes
// on after each of them must not fill the disk with the words about it.
const (
	oomKillsMax = 100
	oomToldMax  = 1000
)

// OutOfMemory hears of a process that the kernel has killed. It may be called
// from any goroutine.
func (s *Step) OutOfMemory(k step.OOMKill) {
	text := k.String()
	s.mu.Lock()
	s.oomKills++
	if s.oomKills > oomToldMax {
		s.mu.Unlock()
		return
	}
	first := len(s.rec.OOM) == 0
	if len(s.rec.OOM) < oomKillsMax {
		s.rec.OOM = append(s.rec.OOM, k)
	}
	s.noteReason(text)
	s.mu.Unlock()
	s.d.Audience.Event(step.Event{Time: k.Time, Event: step.EventOOM, Rank: k.Rank, PID: k.PID, Text: text})
	s.sayError(text)
	if first && s.plan.Spec.Confine.OOMGroup == step.OOMGroupStep {
		ours := s.groupKillIsOurs()
		if ours {
			s.sayError("all tasks of the step are killed with it (--oom-kill-step)")
		}
		s.end(cause{kind: byMemory, rank: k.Rank, reason: text, ends: !ours})
	}
}

// sayMoreOOM tells of the kills that nobody was told of.
func (s *Step) sayMoreOOM() {
	s.mu.Lock()
	more := s.oomKills - oomToldMax
	s.mu.Unlock()
	if more > 0 {
		s.sayError(fmt.Sprintf("%d more processes were killed for want of memory", more))
	}
}

// groupKillIsOurs tells whether the tasks die together and the kernel does not
// see to it: cgroup v1 has no memory.oom.group.
func (s *Step) groupKillIsOurs() bool {
	c := &s.plan.Spec.Confine
	_, v1 := c.V1["memory"]
	return c.OOMGroup == step.OOMGroupStep && v1
}
