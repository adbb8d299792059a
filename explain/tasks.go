package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// state finds what the step as a whole does.
func (e *explainer) state() {
	r := e.rec
	if r.Parent != nil {
		e.add(Finding{Kind: KindSpawn, Text: fmt.Sprintf("the step was spawned by the MPI program of step %s", r.Parent.Name())})
	}
	if r.Suspended != nil && !r.State.Final() {
		f := Finding{Kind: KindSuspended, Text: "all of its processes stand still since " + r.Suspended.Format(time.RFC3339), Hint: "stepctl resume " + fmt.Sprint(r.ID.Job)}
		if r.SuspendedBy != nil {
			f.Text += fmt.Sprintf(", by uid %d", *r.SuspendedBy)
		}
		e.add(f)
	}
	if r.State == step.NodeFail {
		e.add(Finding{Kind: KindNode, Text: r.Reason})
	}
	if r.Drain != "" {
		e.add(Finding{Kind: KindDrain, Text: "the node was drained: " + r.Drain, Hint: "stepctl node resume, when that is mended"})
	}
}

// aborted reports an MPI program that has ended itself.
func (e *explainer) aborted() {
	if e.rec.Aborted && e.rec.Reason != "" {
		e.add(Finding{Kind: KindAbort, Text: e.rec.Reason})
	}
}

// ends finds how tasks ended that did not end well.
func (e *explainer) ends() {
	type end struct {
		status step.ExitStatus
		sender string
		lost   bool
	}
	final := e.rec.State.Final()
	keys, groups := groupTasks(e.rec.Tasks, func(t *step.Task) (end, bool) {
		switch {
		case t.State == step.TaskFailed:
			return end{}, false // see unstarted
		case t.Status != nil:
			return end{status: *t.Status, sender: e.sender(t.Rank, *t.Status)}, *t.Status != 0
		}
		return end{lost: true}, final && t.State == step.TaskExited
	})
	for _, k := range keys {
		g := groups[k]
		f := Finding{Kind: KindExit, Ranks: g.list()}
		if k.lost {
			f.Text = g.who() + " ended, and it is not known how: the process that waited for them died first"
			e.add(f)
			continue
		}
		f.Text = fmt.Sprintf("%s: %s%s", g.who(), k.status.Describe(), k.sender)
		if k.sender == "" {
			f.Hint = e.endHint(k.status)
		}
		e.add(f)
	}
}

// sender says who sent the signal that ended a rank, where that was heard.
func (e *explainer) sender(rank int, st step.ExitStatus) string {
	sig, ok := st.Signaled()
	if !ok {
		return ""
	}
	for _, k := range e.log.kills {
		if exit, heard := e.log.exits[rank]; k.Signal != nil && *k.Signal == int(sig) && (!heard || !k.Time.After(exit)) {
			return ", by the step's end"
		}
	}
	if slices.Contains(e.log.ranks[rank], int(sig)) {
		return ", which stepctl signal or the client has sent"
	}
	return ""
}

// endHint says what a status usually means.
func (e *explainer) endHint(st step.ExitStatus) string {
	if code, ok := st.Exited(); ok {
		name := unix.SignalName(unix.Signal(code - 128))
		switch {
		case code == 126:
			return "126 is a shell's word for a file that it cannot execute"
		case code == 127:
			return "127 is a shell's word for a command that it does not find, and ld.so's for a library or symbol that is missing"
		case code > 128 && code < 193 && name != "":
			return fmt.Sprintf("%d is a shell's word for a child that %s has ended", code, name)
		}
		return ""
	}
	sig, _ := st.Signaled()
	switch {
	case sig == unix.SIGKILL && len(e.rec.OOM) > 0:
		return "the kernel has killed for want of memory, see above"
	case signalHints[sig] != "":
		return signalHints[sig]
	case st.CoreDumped():
		return "the core file is where kernel.core_pattern says"
	case sig == unix.SIGSEGV || sig == unix.SIGABRT || sig == unix.SIGFPE:
		return "ulimit -c unlimited before the step lets the kernel write a core file"
	}
	return ""
}

// signalHints are what the end by a signal usually means.
var signalHints = map[unix.Signal]string{
	unix.SIGKILL: "neither stepd nor the kernel's memory limits have sent it: another process has",
	unix.SIGXCPU: "the limit of CPU time is reached: ulimit -t, propagated from the submitting shell",
	unix.SIGXFSZ: "the limit of a file's size is reached: ulimit -f, propagated from the submitting shell",
	unix.SIGBUS:  "a mapped file was cut, or a tmpfs such as /dev/shm is full",
	unix.SIGILL:  "the program has an instruction that this CPU lacks: it was built for another one",
	unix.SIGSYS:  "a seccomp filter has refused a system call",
	unix.SIGPIPE: "it wrote to a pipe that has no reader any more",
}

// cancelled finds who has ended the step.
func (e *explainer) cancelled() {
	r := e.rec
	switch {
	case r.State == step.Cancelled:
		e.add(Finding{Kind: KindCancel, Text: "the step was cancelled: " + r.Reason})
	case r.State == step.Timeout:
		e.add(Finding{Kind: KindCancel, Text: "the step's time was over: " + r.Reason})
	case r.State == step.Failed && r.Reason != "" && !e.said(r.Reason):
		// What no other finding has: a daemon's death, --kill-on-bad-exit.
		e.add(Finding{Kind: KindState, Text: r.Reason})
	}
}

// said reports whether a finding has these words, or will have: how a task ended.
func (e *explainer) said(words string) bool {
	for i := range e.rec.Tasks {
		t := &e.rec.Tasks[i]
		if t.Status != nil && words == fmt.Sprintf("task %d: %s", t.Rank, t.Status.Describe()) {
			return true
		}
	}
	return slices.ContainsFunc(e.found, func(f Finding) bool { return strings.Contains(f.Text, words) })
}

// limits finds resource limits that may be why a step has failed: they are lower than
// where it was submitted.
func (e *explainer) limits() {
	if e.rec.State == step.Completed {
		return
	}
	for _, text := range e.log.limits {
		e.add(Finding{Kind: KindLimit, Text: text, Hint: "a higher one is set in noded.service (LimitNOFILE= and its kin); --propagate=NONE passes none on"})
	}
}

// held finds processes that have kept a stream open.
func (e *explainer) held() {
	for _, text := range e.log.held {
		e.add(Finding{Kind: KindStream, Text: text, Hint: "a process that goes on by itself closes its standard streams, or has them in a file: command >log 2>&1 </dev/null &"})
	}
}

// leftovers finds processes that do not die.
func (e *explainer) leftovers() {
	for _, s := range e.rec.Survivors {
		e.add(Finding{Kind: KindUnkillable, Text: "SIGKILL has not ended " + s.String()})
	}
	if n := e.rec.SurvivorsTotal - len(e.rec.Survivors); n > 0 {
		e.add(Finding{Kind: KindUnkillable, Text: fmt.Sprintf("SIGKILL has not ended %d more of its processes", n)})
	}
}

// StageTaskProlog is the stage of a task that runs TaskProlog or --task-prolog.
const StageTaskProlog = "task_prolog"

// doing finds processes of a step that does not go on: in a hook, stopped, or
// asleep in the kernel.
func (e *explainer) doing() {
	if e.rec.State.Final() || e.rec.Suspended != nil {
		return
	}
	if h := e.rec.Host; h != nil && (h.Hook != "" || h.State == "T" || h.State == "t" || h.State == "D") {
		f := Finding{Kind: KindProcess, Text: "the SPANK host is " + h.String()}
		if h.Hook != "" {
			f.Hint = hookHint
		}
		e.add(f)
	}
	type state struct{ state, hook, plugin, stage string }
	keys, groups := groupTasks(e.rec.Tasks, func(t *step.Task) (state, bool) {
		d := t.Doing
		if d == nil || t.Status != nil {
			return state{}, false
		}
		held := d.State == "T" || d.State == "t" || d.State == "D"
		k := state{hook: d.Hook, plugin: d.Plugin, stage: d.Stage}
		if held {
			k.state = d.State
		}
		return k, held || d.Hook != "" || d.Stage != "" && e.rec.State == step.Running
	})
	for _, k := range keys {
		g := groups[k]
		f := Finding{Kind: KindProcess, Ranks: g.list()}
		if len(g.ranks) == 1 {
			f.Text = g.who() + " is " + g.first.Doing.String()
		} else {
			f.Text = fmt.Sprintf("%s; the first of them is %s", g.who(), g.first.Doing)
		}
		switch {
		case k.stage == StageTaskProlog:
			f.Text += ": its TaskProlog or --task-prolog has not ended"
			f.Hint = "PrologEpilogTimeout in slurm.conf bounds it; stepctl cancel ends it with the step"
		case k.state == "T":
			f.Hint = "kill -CONT lets it go on; stepctl signal -s CONT does"
		case k.state == "D":
			f.Hint = "it waits in the kernel, mostly for a disk or a file server"
		}
		e.add(f)
	}
}
