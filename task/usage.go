package task

import (
	"fmt"
	"time"

	"stepd/eventlog"
	"stepd/step"
)

// reapPatience bounds the wait for the last orphans, which are dead by then.
const reapPatience = time.Second

// settleUsage makes the record's usage final: all processes of the step are dead,
// and what they have used is known when stepd has reaped them.
func (t *teardown) settleUsage() {
	t.awaitOrphans()
	var usage *step.StepUsage
	t.ledger.write(func(rec *step.Record) {
		t.d.Accounting.Fill(rec)
		usage = rec.Usage
	})
	if usage != nil {
		t.messages.event(eventlog.Event{Event: eventlog.EventUsage, Usage: usage})
	}
}

// awaitOrphans returns when stepd has no children, or after reapPatience: one
// that does not die, or whose end its tracer keeps, is never reaped.
func (t *teardown) awaitOrphans() {
	patience := time.After(reapPatience)
	for range 2 { // what the reaper's first round has reaped is reported before the second
		select {
		case <-t.d.NoChildren():
		case <-patience:
			return
		}
	}
}

// OverMemory ends the step at once, as Slurm does, because its accounting has
// found that it uses more memory than it may. why names use and limit.
func (s *Step) OverMemory(why string) {
	text := fmt.Sprintf("Step %s exceeded its memory limit: %s", s.plan.Spec.ID, why)
	s.messages.sayError(text)
	s.end(cause{kind: byMemory, reason: text})
}

// exitOOM is the step's exit code where a process was killed for want of memory
// and yet every task has ended well: SIG_OOM of slurm.h.
const exitOOM = 253

// A record keeps oomKillsMax kills, and oomReportedMax are reported: a script that goes
// on after each of them must not fill the disk with the words about it.
const (
	oomKillsMax    = 100
	oomReportedMax = 1000
)

// OutOfMemory notes a process that the kernel has killed. It may be called
// from any goroutine.
func (s *Step) OutOfMemory(k step.OOMKill) {
	text := k.String()
	n, first := s.ledger.noteOOM(k)
	if n > oomReportedMax {
		return
	}
	s.messages.event(eventlog.Event{Time: k.Time, Event: eventlog.EventOOM, Rank: k.Rank, PID: k.PID, Text: text})
	s.messages.sayError(text)
	if first && s.plan.Spec.Confine.OOMGroup == step.OOMGroupStep {
		// The tasks die together. cgroup v1 has no memory.oom.group, by which the kernel
		// would see to it.
		_, ours := s.plan.Spec.Confine.V1["memory"]
		if ours {
			s.messages.sayError("all tasks of the step are killed with it (--oom-kill-step)")
		}
		s.end(cause{kind: byMemory, rank: k.Rank, reason: text, ends: !ours})
	}
}

// noteOOM counts a kill and keeps it, and reports whether it is the first one.
func (l *ledger) noteOOM(k step.OOMKill) (n int, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.oomKills++
	if len(l.rec.OOM) < oomKillsMax {
		l.rec.OOM = append(l.rec.OOM, k)
	}
	firstReason(&l.rec, k.String())
	return l.oomKills, l.oomKills == 1
}

// reportMoreOOM reports the kills that were not.
func (t *teardown) reportMoreOOM() {
	t.ledger.mu.Lock()
	more := t.ledger.oomKills - oomReportedMax
	t.ledger.mu.Unlock()
	if more > 0 {
		t.messages.sayError(fmt.Sprintf("%d more processes were killed for want of memory", more))
	}
}
