package explain

import (
	"cmp"
	"fmt"
	"slices"

	"stepd/eventlog"
	"stepd/step"
)

// doing finds processes of a step that does not go on: in a hook, stopped, or
// asleep in the kernel.
func (e *explainer) doing() {
	if e.rec.State.Final() || e.rec.Suspended != nil {
		return
	}
	if h := e.rec.Host; h != nil && (h.Hook != "" || isHeld(h)) {
		f := Finding{Kind: KindProcess, Text: "the SPANK host is " + outside(h), Hint: heldHint(h.State)}
		if h.Hook != "" {
			f.Text, f.Detail, f.Hint = notReturned(h), f.Text, cmp.Or(f.Hint, hookHint(e.rec.ID))
		}
		e.add(f)
	}
	type state struct{ state, hook, plugin, stage string }
	groups := groupTasks(e.rec.Tasks, func(t *step.Task) (state, bool) {
		d := t.Doing
		if d == nil || t.Status != nil {
			return state{}, false
		}
		held := isHeld(d)
		k := state{hook: d.Hook, plugin: d.Plugin, stage: d.Stage}
		if held {
			k.state = d.State
		}
		return k, held || d.Hook != "" || d.Stage != "" && e.rec.State == step.Running
	})
	for _, g := range groups {
		k := g.key
		f := Finding{Kind: KindProcess, Ranks: g.list()}
		if len(g.ranks) == 1 {
			f.Text = g.who() + " is " + outside(g.first.Doing)
		} else {
			f.Text = fmt.Sprintf("%s; the first of them is %s", g.who(), outside(g.first.Doing))
		}
		f.Hint = heldHint(k.state)
		switch {
		case k.stage == eventlog.PhaseTaskProlog:
			f.Text, f.Detail = "TaskProlog or --task-prolog has not ended, of "+g.who(), f.Text
			f.Hint = fmt.Sprintf("stepctl cancel %s ends it; PrologEpilogTimeout in slurm.conf bounds it", e.rec.ID.Name())
		case k.hook != "":
			f.Text, f.Detail, f.Hint = notReturned(g.first.Doing)+", "+g.who(), f.Text, cmp.Or(f.Hint, hookHint(e.rec.ID))
		}
		e.add(f)
	}
}

// isHeld reports whether a process is stopped, or asleep in the kernel.
func isHeld(d *step.Doing) bool {
	return d.State == "T" || d.State == "t" || d.State == "D" && d.Wchan != "kernel_clone" // vfork(2), until its child's execve
}

// heldHint is what to do about such a process, "" of another one.
func heldHint(state string) string {
	switch state {
	case "T":
		return "kill -CONT lets it go on; stepctl signal -s CONT does"
	case "t":
		return "its tracer (a debugger, strace) lets it go on, or ends"
	case "D":
		return "it waits in the kernel, mostly for a disk or a file server"
	}
	return ""
}

// outside is a process in one phrase without its hook, which notReturned names.
func outside(d *step.Doing) string {
	process := *d
	process.Hook = ""
	return process.String()
}

// notReturned says of a process that its hook has not.
func notReturned(d *step.Doing) string {
	return fmt.Sprintf("%q: %s has not returned for %s", d.Plugin, d.Hook, round(d.HookTime))
}

// inHook reports whether a process is known to be in the hook.
func (e *explainer) inHook(plugin, hook string) bool {
	in := func(d *step.Doing) bool { return d != nil && d.Plugin == plugin && d.Hook == hook }
	return !e.rec.State.Final() && (in(e.rec.Host) || slices.ContainsFunc(e.rec.Tasks, func(t step.Task) bool { return in(t.Doing) }))
}

func hookHint(id step.ID) string {
	return fmt.Sprintf("stepctl cancel %s ends it; HookTimeout in stepd.conf bounds hooks", id.Name())
}
