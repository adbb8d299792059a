package task

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
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
		ID: spec.ID, IDName: spec.ID.Name(), Name: spec.Name, UID: spec.User.UID, User: spec.User.Name,
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
	if t.left.kept {
		return // they live on
	}
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
	text := fmt.Sprintf("Step %s exceeded its memory limit: %s", s.plan.Spec.ID.Name(), why)
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

// TooManyProcesses says that the step's tasks cannot fork for its limit of processes.
func (s *Step) TooManyProcesses(text string) { s.messages.sayError(text) }

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
		t.messages.sayError(fmt.Sprintf("and %d more, killed for want of memory", more))
	}
}

// verdict is how a step has ended.
type verdict struct {
	state  step.State
	code   int
	signal *int
}

// verdict is the step's state and exit code: what has ended the step counts
// before what its tasks did; of the tasks the highest code, 128+n for a signal, and at
// least floor.
func (t *teardown) verdict(rec *step.Record, floor int) verdict {
	var tasks verdict
	var worst int
	tasks.code, tasks.signal, worst = worstTask(rec.Tasks)
	first, failed := t.causes.get()
	if first != nil {
		v, counts := t.endedAs(rec, first, tasks)
		if !counts && failed != nil && (tasks.code == 0 || first.kind != byBadExit) {
			// The first cause has ended nothing, and this one has.
			v, counts = t.endedAs(rec, failed, tasks)
		}
		if counts {
			return v
		}
	}
	switch {
	case len(rec.OOM) > 0:
		tasks.code = cmp.Or(tasks.code, exitOOM)
		tasks.state = step.OutOfMemory
		return tasks
	case tasks.code != 0:
		if words := rec.Tasks[worst].EndWords(); words != "" { // else the lost status is the reason already
			firstReason(rec, words)
		}
		tasks.state = step.Failed
		return tasks
	case floor > 0:
		return verdict{state: step.Failed, code: floor}
	}
	return verdict{state: step.Completed}
}

// endedAs is what the cause of the step's end makes of it. tasks is what they say.
// counts is false where the tasks decide.
func (t *teardown) endedAs(rec *step.Record, c *cause, tasks verdict) (v verdict, counts bool) {
	v = tasks
	switch c.kind {
	case byFailure:
		v = verdict{state: step.Failed, code: c.code}
		if c.code == 0 {
			v.state = step.Completed // as its job in Slurm: the record says what the command's code says
		}
		rec.Drain = c.drain
	case byAbort:
		// The task that has aborted decides the code (lifecycle, end).
		v = verdict{state: step.Failed, code: c.code}
		rec.Aborted = !c.elsewhere
	case byTime:
		v.state, v.code = step.Timeout, max(v.code, 1)
	case byMemory:
		if v.state = step.OutOfMemory; len(rec.OOM) > 0 && v.code == 0 {
			v.code = exitOOM
		}
		v.code = max(v.code, 1)
	case byRequest, byHost:
		hit := t.killer.struck || v.signal != nil && t.causes.terminated(syscall.Signal(*v.signal))
		if t.gate.opened && (v.code == 0 || !hit) {
			return v, false // all tasks had ended, or end well: it has ended nothing
		}
		if v.state = step.Cancelled; !t.gate.opened {
			v.code, v.signal = 1, nil // no task has run
		}
		if c.kind == byHost {
			v.state = step.NodeFail
		}
	default: // byBadExit
		return v, false
	}
	leadReason(rec, c.reason)
	return v, true
}

// What slurm_spank_init_failure_mode may say (slurm_errno.h, since 25.05): whom
// the failure of slurm_spank_init is to be blamed on.
const (
	blameNode = 3011
	blameJob  = 3012
)

// blame is what a required plugin's failure does to the step, and to the node.
type blame struct {
	code  int // the step's exit code
	drain bool
}

// hookBlame is the failure table of spank(8) for the hooks that end a launch.
// Where the table has no row (init and init_post_opt on the remote side alone)
// it is what was measured (spank-behaviour §5). A plugin that crashed has no
// row either: then no step succeeds, and a batch job's node is to blame as for
// a return code.
func hookBlame(h *launch.HookError, s *step.Spec) blame {
	batch := isBatch(s)
	if h.RC != nil && h.Hook == "slurm_spank_init" {
		switch *h.RC {
		case blameNode:
			return blame{1, true}
		case blameJob:
			return blame{1, false}
		}
	}
	switch h.Hook {
	case "slurm_spank_init", "slurm_spank_init_post_opt", "slurm_spank_user_init", "slurm_spank_task_post_fork":
		switch {
		case batch:
			return blame{1, h.Required}
		case h.RC == nil, s.Spank.Strict, s.Origin == step.OriginAlloc, s.Origin == step.OriginBatch:
			return blame{1, false}
		}
		return blame{0, false} // srun's own row: no task runs, and nothing has failed
	}
	return blame{1, false}
}

// launchBlame is the same for any error that ended the launch.
func launchBlame(err error, s *step.Spec) blame {
	if hook, ok := errors.AsType[*launch.HookError](err); ok {
		return hookBlame(hook, s)
	}
	// A required plugin that cannot be loaded fails every batch job here.
	_, load := errors.AsType[errLoad](err)
	return blame{1, load && isBatch(s)}
}

// errLoad says that the plugin stack could not be loaded.
type errLoad struct{ error }

func (e errLoad) Unwrap() error { return e.error }

// drainReason is why the node takes no more jobs, in Slurm's words.
func drainReason(err error, s *step.Spec) string {
	what := "batch job complete failure"
	if !isBatch(s) {
		what = "step complete failure"
	}
	text := err.Error()
	if hook, ok := errors.AsType[*launch.HookError](err); ok && hook.RC != nil {
		text = fmt.Sprintf("required plugin %s: %s() failed with rc=%d", hook.Plugin, strings.TrimPrefix(hook.Hook, "slurm_spank_"), *hook.RC)
	}
	return fmt.Sprintf("%s: %s, job %d", what, text, s.ID.Job)
}

// worstTask finds the task whose end is the step's: of several, the one with
// the highest code, 128+n for a signal, and of several with the same code the first. at
// is its index, -1 where all have ended well.
func worstTask(tasks []step.Task) (code int, signal *int, at int) {
	at = -1
	for i := range tasks {
		t := &tasks[i]
		c := 0
		switch {
		case t.Signal != nil:
			c = 128 + *t.Signal
		case t.ExitCode != nil:
			c = *t.ExitCode
		case t.State == step.TaskExited:
			c = 1 // its status was lost with the host
		case t.State == step.TaskFailed:
			c = 1 // it has never run its command
		case t.State == step.TaskRunning:
			c = 1 // it does not die
		}
		if c > code {
			code, signal, at = c, t.Signal, i
		}
	}
	return code, signal, at
}
