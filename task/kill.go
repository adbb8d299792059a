package task

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// unkillableDefault is UnkillableStepTimeout's default (slurm.conf), and
// lastStrike the least time for what is killed after the timeout was spent.
const (
	unkillableDefault = 60 * time.Second
	lastStrike        = time.Second
)

// killBudget is the one budget for the end of all that is killed: processes that
// do not die must not cost UnkillableStepTimeout at each stage of the end. Only
// Run's goroutine uses it.
type killBudget struct {
	seconds  int // UnkillableStepTimeout, 0 is the default
	messages *messages
	ledger   *ledger
	causes   *causes

	began time.Time // zero: nothing is being killed
	// givenUp: processes were left that do not die. noded looks after them.
	givenUp bool
}

// context bounds a kill. Its result goes to spent.
func (b *killBudget) context() (context.Context, context.CancelFunc) {
	now := time.Now()
	if b.began.IsZero() {
		b.began = now
	}
	limit := time.Duration(b.seconds) * time.Second
	if limit <= 0 {
		limit = unkillableDefault
	}
	return context.WithTimeoutCause(context.Background(), max(lastStrike, limit-now.Sub(b.began)),
		fmt.Errorf("still there %v after SIGKILL (UnkillableStepTimeout)", limit))
}

// spent notes the result of a kill, and gives processes up that do not die, which
// it reports once. The error is then reported already.
func (b *killBudget) spent(err error) error {
	if err == nil {
		b.began = time.Time{}
		return nil
	}
	left, ok := errors.AsType[*step.SurvivorsError](err)
	if !ok || b.givenUp {
		return err
	}
	b.givenUp = true
	text := err.Error()
	b.messages.sayError(text)
	b.messages.event(eventlog.Event{Event: eventlog.EventUnkillable, Text: text})
	c := b.causes.endedBy()
	b.ledger.write(func(rec *step.Record) {
		if c != nil {
			firstReason(rec, c.reason)
		}
		rec.Survivors, rec.SurvivorsTotal = left.Survivors, left.Total
		if rec.Reason != "" {
			text = rec.Reason + "; " + text
		}
		rec.Reason = text
	})
	return err
}

// isGivenUp reports whether err says what spent has reported.
func isGivenUp(err error) bool {
	_, ok := errors.AsType[*step.SurvivorsError](err)
	return ok
}

// killer ends the step's processes. Only Run's goroutine uses it.
type killer struct {
	plan       *Plan
	tracker    Tracker
	messages   *messages
	causes     *causes
	budget     *killBudget
	host       *hostProcess
	tasks      *taskTable
	suspension *suspension

	escaped map[int]bool // reported
}

// terminate sends SIGTERM, and SIGCONT so that stopped processes hear it. It returns how
// long they have until SIGKILL. A suspended step gets SIGKILL at once, as in Slurm: to
// wake it would give it KillWait on a node that it was to leave alone. So does one that
// uses too much memory.
func (k *killer) terminate() (seconds int) {
	if k.suspension.end() || k.causes.endedBy().kind == byMemory {
		return 0
	}
	k.noteKill(syscall.SIGTERM)
	k.host.evict()
	if err := k.tracker.Signal(syscall.SIGTERM); err != nil {
		k.messages.log(err.Error())
	}
	k.tracker.Signal(syscall.SIGCONT)
	k.signalEscaped(syscall.SIGTERM)
	return k.plan.Spec.KillWaitS
}

// kill sends SIGKILL to all that is left of the tasks and waits for their end.
func (k *killer) kill() error {
	k.noteKill(syscall.SIGKILL)
	k.host.evict()
	ctx, cancel := k.budget.context()
	defer cancel()
	k.signalEscaped(syscall.SIGKILL)
	return k.budget.spent(k.tracker.Kill(ctx))
}

func (k *killer) noteKill(sig syscall.Signal) {
	n := int(sig)
	k.messages.event(eventlog.Event{Event: eventlog.EventKill, Signal: &n})
}

// signalEscaped sends sig to tasks that are not in the step's cgroups any more: what acts
// on the cgroups does not reach them. Each is reported once. What descends from the tasks
// and was moved away is reported, and not killed: its mover may want it to live on.
func (k *killer) signalEscaped(sig syscall.Signal) {
	ids := make(map[int]int, len(k.tasks.list))
	var pids []int
	for id := range k.tasks.list {
		if p := &k.tasks.list[id]; p.pid != 0 && p.phase != taskEnded {
			ids[p.pid] = id
			pids = append(pids, p.pid)
		}
	}
	escaped, err := k.tracker.Escaped(pids)
	if err != nil {
		k.messages.log(err.Error())
		return
	}
	for _, e := range escaped {
		id, isTask := ids[e.PID]
		switch {
		case k.escaped[e.PID]:
		case isTask:
			k.messages.sayError(fmt.Sprintf("task %d: %s", k.tasks.ranks[id], e))
		default:
			k.messages.log(e.String() + ": it is not killed")
		}
		k.escaped[e.PID] = true
		if isTask {
			k.tasks.signal(id, sig)
		}
	}
}

// heldBack returns the ends of the tasks that are dead and whose parent is not notified:
// the end of a traced process is its tracer's first (ptrace(2)), and one that is
// stopped or hangs, outside of the step, keeps it for ever. The host waits for
// such a task inside the kernel and is of no use any more. It returns nil where a task
// that has not ended is none of them.
func (k *killer) heldBack() (ends []launch.TaskEnd) {
	var words []string
	for id := range k.tasks.list {
		p := &k.tasks.list[id]
		if p.phase == taskEnded {
			continue
		}
		tracer, status, ok := heldZombie(p.pid)
		if !ok {
			return nil
		}
		ends = append(ends, launch.TaskEnd{LocalID: id, Status: status})
		words = append(words, fmt.Sprintf("task %d (pid %d) is dead, and its tracer, pid %d %q, has not taken its end: it stays a zombie until that process ends or detaches",
			k.tasks.ranks[id], p.pid, tracer, procName(tracer)))
	}
	k.messages.sayProblems(words)
	return ends
}

// heldZombie returns how a zombie that is traced ended and its tracer. Its
// number cannot have come again: it is not reaped.
func heldZombie(pid int) (tracer int, status step.ExitStatus, ok bool) {
	st, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, false
	}
	for line := range bytes.Lines(st) {
		if v, found := strings.CutPrefix(string(line), "TracerPid:"); found {
			tracer, _ = strconv.Atoi(strings.TrimSpace(v)) // 0 is no process
		}
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil || tracer == 0 {
		return 0, 0, false
	}
	status, ok = parseZombie(stat)
	return tracer, status, ok
}

// parseZombie finds the wait status in the stat line of a zombie: field 52 of
// proc_pid_stat(5). The name before the last ')' is the user's.
func parseZombie(stat []byte) (status step.ExitStatus, ok bool) {
	end := bytes.LastIndexByte(stat, ')')
	if end < 0 {
		return 0, false
	}
	f := bytes.Fields(stat[end+1:])
	if len(f) < 50 || string(f[0]) != "Z" {
		return 0, false
	}
	code, err := strconv.ParseUint(string(f[49]), 10, 16)
	if err != nil {
		return 0, false
	}
	return step.ExitStatus(code), true
}
