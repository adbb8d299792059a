package task

import (
	"fmt"
	"time"

	"stepd/step"
)

// beginAccounting is called when every task is tracked.
func (s *Step) beginAccounting() {
	if s.d.Accounting == nil {
		return
	}
	pids := make([]int, len(s.tasks))
	for id := range s.tasks {
		pids[id] = s.tasks[id].pid
	}
	_, inside := s.d.Tracker.HostCgroup()
	s.d.Accounting.Begin(s.host.PID(), inside, pids)
}

// finishAccounting reads what goes with the tasks' cgroups.
func (s *Step) finishAccounting() error {
	if s.d.Accounting != nil {
		s.d.Accounting.Finish()
	}
	return nil
}

// reapPatience bounds the wait for the last orphans, which are dead by then.
const reapPatience = time.Second

// settleUsage makes the record's usage final: all processes of the step are dead,
// and those that stepd reaps tell what they have used when they are.
func (s *Step) settleUsage() {
	if s.d.Accounting == nil {
		return
	}
	s.awaitOrphans()
	s.mu.Lock()
	s.d.Accounting.Fill(&s.rec)
	usage := s.rec.Usage
	s.mu.Unlock()
	if usage != nil {
		s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventUsage, Usage: usage})
	}
}

// awaitOrphans returns when stepd has no children, or after reapPatience: one
// that does not die, or whose end its tracer keeps, is never reaped.
func (s *Step) awaitOrphans() {
	patience := time.NewTimer(reapPatience)
	defer patience.Stop()
	for range 2 { // what the first round of the reaper has reaped is told before the second
		select {
		case <-s.d.NoChildren():
		case <-patience.C:
			return
		}
	}
}

// Stat is the record with what the tasks have used until now, and what the
// processes do.
func (s *Step) Stat() step.Record {
	if s.d.Accounting != nil {
		s.d.Accounting.Sample()
	}
	rec := s.Record()
	if s.d.Accounting != nil && (rec.Usage == nil || !rec.Usage.Final) {
		s.d.Accounting.Fill(&rec)
	}
	s.lookNow(&rec)
	return rec
}

// OverMemory ends the step at once, as Slurm does, because its accounting has
// found that it uses more memory than it may. why names use and limit.
func (s *Step) OverMemory(why string) {
	text := fmt.Sprintf("Step %s exceeded its memory limit: %s", s.plan.Spec.ID, why)
	s.sayError(text)
	s.end(cause{kind: byMemory, reason: text})
}
