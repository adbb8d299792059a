package task

import (
	"cmp"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// ledger keeps the step's record while it is written. Any goroutine may use it.
type ledger struct {
	messages *messages
	streams  Streams

	mu    sync.Mutex
	rec   step.Record                // guarded by mu
	fails map[int]launch.LaunchError // guarded by mu: why a task was not exec'd, by local id
	// oomKills counts the processes killed for want of memory.
	oomKills int // guarded by mu
	floor    int // guarded by mu: the least exit code, where SpankStrict asks for one
}

// newLedger begins the record of a step: it has the tasks of this node.
func newLedger(p *Plan, m *messages, streams Streams) *ledger {
	spec := p.Spec
	l := &ledger{messages: m, streams: streams, fails: make(map[int]launch.LaunchError)}
	l.rec = step.Record{
		ID: spec.ID, Name: spec.Name, UID: spec.User.UID, User: spec.User.Name,
		Node: spec.NodeName, State: step.Pending, NTasks: spec.NTasks,
		Command: spec.Argv, Submitted: m.now(), MPI: spec.MPI, CPUs: spec.CPUs,
		Cgroup: spec.Proctrack.Dir, CgroupTasks: spec.Proctrack.Tasks, CgroupV1: spec.Confine.V1, StepdPID: unix.Getpid(),
		Parent: spec.Parent,
		Tasks:  make([]step.Task, len(p.Ranks)),
	}
	for i, rank := range p.Ranks {
		l.rec.Tasks[i] = step.Task{Rank: rank, LocalID: i, State: step.TaskPending}
	}
	return l
}

// copy is the record as it is now.
func (l *ledger) copy() step.Record {
	l.mu.Lock()
	rec := l.rec
	rec.Tasks = append([]step.Task(nil), l.rec.Tasks...)
	rec.OOM = append([]step.OOMKill(nil), l.rec.OOM...)
	l.mu.Unlock()
	l.streams.Fill(&rec)
	return rec
}

// write changes the record. f must not wait, nor use the ledger.
func (l *ledger) write(f func(rec *step.Record)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.rec)
}

// setState moves the step and reports it.
func (l *ledger) setState(to step.State) {
	l.mu.Lock()
	st, err := l.rec.State.Move(to)
	l.rec.State = st
	l.mu.Unlock()
	if err != nil {
		l.messages.log(err.Error())
		return
	}
	l.messages.event(eventlog.Event{Event: eventlog.EventState, State: to})
	if !to.Final() {
		l.messages.audience.State(l.copy())
	}
}

// noteReason keeps the first reason.
func (l *ledger) noteReason(reason string) {
	l.write(func(rec *step.Record) { firstReason(rec, reason) })
}

// strict makes a required plugin's failure the step's: it ends non-zero.
func (l *ledger) strict(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	firstReason(&l.rec, reason)
	l.floor = 1
}

// leastCode is the least exit code of the step.
func (l *ledger) leastCode() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.floor
}

// noteFailure keeps why a task is not exec'd.
func (l *ledger) noteFailure(id int, f launch.LaunchError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fails[id] = f
}

// addFailures completes tasks by what they reported themselves before they ended.
func (l *ledger) addFailures() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, f := range l.fails {
		t := &l.rec.Tasks[id]
		t.State, t.Stage, t.Errno = step.TaskFailed, f.Stage, int(f.Errno)
		t.Object, t.Why = f.Object, f.Why
	}
}

// firstReason keeps the first reason.
func firstReason(rec *step.Record, reason string) {
	rec.Reason = cmp.Or(rec.Reason, reason)
}

// leadReason puts the cause of the step's end before what was noted meanwhile.
func leadReason(rec *step.Record, reason string) {
	switch {
	case rec.Reason == "":
		rec.Reason = reason
	case !strings.HasPrefix(rec.Reason, reason):
		rec.Reason = reason + "; " + rec.Reason
	}
}

// moves is a table of the legal moves between states.
type moves[S ~string] map[S][]S

// move returns to, or from and an error that names both where the table has no such move.
func (m moves[S]) move(what string, from, to S) (S, error) {
	for _, legal := range m[from] {
		if legal == to {
			return to, nil
		}
	}
	return from, fmt.Errorf("internal error: %s cannot go from %q to %q", what, from, to)
}

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
