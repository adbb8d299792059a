package explain

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step"
)

// StageWords is what a stage of the launch does: "the plugins are loaded"; of one that
// is not known its name.
func StageWords(name string) string {
	if does, ok := stageDoes(name); ok {
		return does
	}
	return "stage " + name
}

// stageDoes is what a stage of the launch does; all others belong to a step's end.
func stageDoes(name string) (does string, ofLaunch bool) {
	does = hint("stage", func(stage string) bool { return stage == name })
	return does, does != ""
}

// stage is where the launch stands or has stopped.
func (e *explainer) stage() *Stage {
	for i := range e.log.stages {
		s := &e.log.stages[i]
		_, launch := stageDoes(s.Name)
		if launch && (s.Error != "" || s.Ended == nil && !e.rec.State.Final()) {
			return s
		}
	}
	return nil
}

// stages finds what stages of launch and end have said.
func (e *explainer) stages() {
	for i := range e.log.stages {
		s := &e.log.stages[i]
		does, launch := stageDoes(s.Name)
		f := Finding{Kind: KindStage}
		switch {
		case launch && s.Error != "" && e.pluginStopped(s):
			continue // one cause, once
		case launch && s.Error != "":
			f.Text = fmt.Sprintf("the launch stopped at its stage %s, where %s", s.Name, does)
			if !e.said(s.Error) { // else it is the crash
				f.Text += ": " + s.Error
			}
			f.Hint = stageHints()[s.Name]
		case launch && s.Ended == nil && e.inProlog(s):
			continue // what its ranks do is said below
		case launch && s.Ended == nil && !e.rec.State.Final():
			f.Text = fmt.Sprintf("the launch is at its stage %s, where %s, for %s", s.Name, does, round(e.now.Sub(s.Begun)))
			if s.Name == "streams" {
				f.Hint = "it waits for the client that is to hand over the streams: is it stopped?"
			}
		case launch && s.Ended == nil && e.rec.Reason != "" && !e.tasksRan():
			f.Text = fmt.Sprintf("the launch had reached its stage %s, where %s", s.Name, does)
		case !launch && s.Error != "" && !e.said(s.Error):
			f.Text = fmt.Sprintf("at the step's end, %s failed: %s", strings.TrimPrefix(s.Name, "undo "), s.Error)
		default:
			continue
		}
		e.add(f)
	}
}

// inProlog reports whether the stage is the tasks' prologs, and what ranks do there is known.
func (e *explainer) inProlog(s *Stage) bool {
	return s.Name == eventlog.PhaseTaskProlog && slices.ContainsFunc(e.rec.Tasks, func(t step.Task) bool {
		return t.Doing != nil && t.Doing.Stage == eventlog.PhaseTaskProlog
	})
}

// pluginStopped reports whether the launch has stopped at a stage for a plugin, which a finding
// of its own names.
func (e *explainer) pluginStopped(s *Stage) bool {
	if slices.ContainsFunc(e.found, func(f Finding) bool { return f.Kind == KindPlugin }) {
		return true // it has crashed: the stage knows only that its process is gone
	}
	return e.hookFailed(s.Error)
}

// hookFailed reports whether words are about a hook that has failed, which a finding names.
func (e *explainer) hookFailed(words string) bool {
	return slices.ContainsFunc(e.log.hooks, func(h hookFailure) bool {
		return h.rc != nil && strings.HasPrefix(words, fmt.Sprintf("plugin %q: %s: ", h.plugin, h.hook))
	})
}

// stageHints are where to look when a stage fails. They are made when they are needed: a run of
// stepctl, which links them, does without.
func stageHints() map[string]string {
	return map[string]string{
		"prolog":          "noded's log has what the prolog said; a failed prolog drains the node",
		"proctrack":       cgroupHint,
		"track":           cgroupHint,
		"task_pre_setuid": cgroupHint,
		"load":            pluginHint,
		"init":            pluginHint,
		"user_init":       pluginHint,
		"task_post_fork":  pluginHint,
	}
}

const (
	cgroupHint = "noded --check, and docs/cgroups.md"
	hookHint   = "HookTimeout in stepd.conf bounds hooks"
	pluginHint = "stepctl plugins --check looks at the plugins"
)

func (e *explainer) tasksRan() bool { return e.rec.Started != nil }

// crash finds the plugin that took its process down, or a task: the first finding, in the
// record's own words.
func (e *explainer) crash() {
	if !e.rec.State.Final() {
		return
	}
	f := Finding{Kind: KindPlugin, Hint: "stepctl plugins --check; docs/plugin.md has how to see more of it"}
	at := func(plugin, hook string) int {
		return slices.IndexFunc(e.log.hooks, func(h hookFailure) bool { return h.rc == nil && h.plugin == plugin && h.hook == hook })
	}
	n := -1
	if c := e.rec.PluginCrash; c != nil {
		n = at(filepath.Base(c.Path), c.Hook)
		f.Text = cmp.Or(c.Cause, fmt.Sprintf("plugin %q crashed or was ended in %s", c.Path, c.Hook))
		if c.Required {
			f.Hint = "it is required: no step runs without it; " + f.Hint
		} else {
			f.Hint = "it is optional, and may be left out with QuarantineAfter; " + f.Hint
		}
	} else {
		n = slices.IndexFunc(e.log.hooks, func(h hookFailure) bool {
			return h.rc == nil && strings.HasPrefix(e.rec.Reason, fmt.Sprintf("plugin %q: %s", h.plugin, h.hook))
		})
		f.Text = e.rec.Reason
	}
	if n >= 0 {
		h := e.log.hooks[n]
		slices.Sort(h.ranks)
		f.Ranks = step.FormatCPUList(h.ranks)
		e.crashed = h.ranks
		if len(h.ranks) > 1 {
			f.Text += fmt.Sprintf("; of %s alike", ranksText(h.ranks))
		}
		e.log.hooks = slices.Delete(e.log.hooks, n, n+1) // it is said
	} else if e.rec.PluginCrash == nil {
		return
	}
	e.add(f)
}

// plugins finds hooks that failed or hang.
func (e *explainer) plugins() {
	for _, h := range e.log.hooks {
		slices.Sort(h.ranks)
		f := Finding{Kind: KindPlugin, Ranks: step.FormatCPUList(h.ranks)}
		where := fmt.Sprintf("plugin %q: %s", h.plugin, h.hook)
		if len(h.ranks) > 0 {
			where += " (" + ranksText(h.ranks) + ")"
		}
		switch {
		case h.rc != nil:
			f.Text = fmt.Sprintf("%s returned %d", where, *h.rc)
			f.Hint = "what the plugin said stands in noded's log, and in the step's standard error"
			if e.rec.State == step.Completed {
				f.Hint = "as in Slurm no plugin's failure there fails the step, a required one's neither: SpankStrict=yes in stepd.conf makes it (docs/spank.md, Failures); " + f.Hint
			}
		case !e.rec.State.Final():
			f.Text = where + " has not returned"
			f.Hint = hookHint
		default:
			f.Text = where + " has never returned"
		}
		e.add(f)
	}
}

// startFailure is why tasks were not exec'd.
type startFailure struct {
	stage       string
	errno       int
	object, why string
	end         string // the signal that has ended it there, "" without
}

// unstarted finds tasks that were never exec'd, and unstartedForEnd those for which the step's end
// came too soon: that follows from its cause.
func (e *explainer) unstarted() {
	e.addUnstarted(func(k startFailure) bool { return !strings.HasSuffix(k.end, byStepsEnd) })
}

func (e *explainer) unstartedForEnd() {
	e.addUnstarted(func(k startFailure) bool { return strings.HasSuffix(k.end, byStepsEnd) })
}

// addUnstarted adds the failures that are wanted.
func (e *explainer) addUnstarted(want func(startFailure) bool) {
	groups := groupTasks(e.rec.Tasks, func(t *step.Task) (startFailure, bool) {
		// Who waited at the gate has done nothing wrong, and a hook that has crashed is said already.
		return startFailure{t.Stage, t.Errno, t.Object, t.Why, e.signalled(t)},
			t.State == step.TaskFailed && t.Stage != "gate" && t.Stage != "" && !slices.Contains(e.crashed, t.Rank)
	})
	for _, g := range groups {
		k := g.key
		if !want(k) {
			continue
		}
		text := fmt.Sprintf("%s never ran the command: the stage %s failed", g.who(), k.stage)
		switch {
		case k.end != "":
			text = fmt.Sprintf("%s never ran the command, and ended at the stage %s: %s", g.who(), k.stage, k.end)
		case k.stage == "exec" && len(e.rec.Command) > 0:
			text = fmt.Sprintf("%s never ran: cannot execute %q", g.who(), cmp.Or(programOf(k.object), e.rec.Command[0]))
		case k.stage == "stdio" && k.object == "" && k.errno == 0:
			text = fmt.Sprintf("%s never ran: the step was ended while the files of its standard streams were opened", g.who())
		case k.stage == "stdio" && k.object != "":
			text = fmt.Sprintf("%s never ran: cannot open the file %q of a standard stream", g.who(), k.object)
		}
		if k.errno != 0 {
			text += ": " + unix.Errno(k.errno).Error()
		}
		if k.why != "" {
			text += ": " + k.why
		}
		e.add(Finding{Kind: KindExec, Text: text, Ranks: g.list(), Hint: startHint(k)})
	}
}

// signalled is how a signal has ended a task before it ran, "" of any other end.
func (e *explainer) signalled(t *step.Task) string {
	if t.Status == nil {
		return ""
	}
	if _, ok := t.Status.Signaled(); !ok {
		return ""
	}
	return t.Status.Describe() + e.sender(t.Rank, *t.Status)
}

// programOf is the program of an exec that failed; Slurm's words for one whose
// interpreter is missing name that alone.
func programOf(object string) string {
	if strings.HasPrefix(object, "bad interpreter(") {
		return ""
	}
	program, _, _ := strings.Cut(object, ": bad interpreter(")
	return program
}

func startHint(k startFailure) string {
	switch {
	case strings.HasSuffix(k.end, byStepsEnd):
		return ""
	case k.end != "":
		return "nothing of the command has run: it may be started again as it was"
	}
	exec := hint("exec", func(name string) bool { return k.stage == "exec" && unix.ErrnoName(unix.Errno(k.errno)) == name })
	if text := hint("why", func(words string) bool { return strings.Contains(k.why, words) }); text != "" {
		return text
	}
	switch errno := unix.Errno(k.errno); {
	case strings.Contains(k.why, "the directory") && strings.Contains(k.why, "does not exist"):
		return "the directory is not on this node: is its file system mounted here?"
	case exec != "":
		return exec
	case k.stage == "stdio" && errno == unix.ENOENT:
		return "the folder of --output, --error or --input must be on the node"
	case k.stage == "stdio":
		return "the file of --output, --error or --input is opened as the user, on the node"
	case strings.HasPrefix(k.stage, "chdir") && k.errno != 0:
		return "the working directory must be on the node and the user's to enter: --chdir names another one"
	case errno == unix.EAGAIN:
		return "a limit of processes is reached: ulimit -u, pids.max"
	case errno == unix.ENOMEM:
		return "there is no memory left"
	}
	return ""
}

// memory finds processes that ended for want of memory.
func (e *explainer) memory() {
	const most = 8
	for i, k := range e.rec.OOM {
		if i == most {
			e.add(Finding{Kind: KindMemory, Text: fmt.Sprintf("and %d more, killed for want of memory", len(e.rec.OOM)-most)})
			break
		}
		f := Finding{Kind: KindMemory, Text: strings.Replace(k.String(), "Out Of Memory: ", "", 1)}
		if text, more, ok := strings.Cut(f.Text, "; --mem"); ok {
			f.Text, f.Hint = text, "--mem"+more
		}
		if k.Rank != nil {
			f.Ranks = fmt.Sprint(*k.Rank)
		}
		e.add(f)
	}
	if e.rec.State == step.OutOfMemory && len(e.rec.OOM) == 0 {
		e.add(Finding{Kind: KindMemory, Text: cmp.Or(e.rec.Reason, "the step's memory limit was reached"), Hint: "--mem or --mem-per-cpu asks for more"})
	}
}

// state finds what the step as a whole does.
func (e *explainer) state() {
	r := e.rec
	if r.State == step.Pending {
		f := Finding{Kind: KindState, Text: "it waits for its client to launch it", Hint: "stepctl cancel " + r.ID.Name() + " gives its CPUs back"}
		if r.LauncherPID > 0 {
			f.Text = fmt.Sprintf("it waits for its client, pid %d, which runs the plugins' local hooks before it launches the step", r.LauncherPID)
		}
		e.add(f)
	}
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
	switch {
	case lostNode(r):
		e.add(Finding{Kind: KindNode, Text: r.Reason, Hint: "it may be started again as it was; the log of that node's slurmd has more"})
	case r.State == step.NodeFail, r.State == step.Failed && r.StepdLost && r.Reason != "":
		text := r.Reason
		if r.Node != "" { // a step over several nodes has a record on each
			text = r.Node + ": " + text
		}
		e.add(Finding{Kind: KindNode, Text: text, Hint: "it may be started again as it was; the log of noded, or of slurmd, has more"})
	}
	if r.Drain != "" {
		e.add(Finding{Kind: KindDrain, Text: "node drained: " + r.Drain, Hint: "stepctl node resume, when that is mended"})
	}
}

// lostNode reports whether a step over several nodes was ended since it has lost another one
// (stepnet.LostError).
func lostNode(rec *step.Record) bool {
	return rec.State == step.Failed && strings.HasPrefix(rec.Reason, "lost node ")
}

// aborted reports an MPI program that has ended itself.
func (e *explainer) aborted() {
	if e.rec.Aborted && e.rec.Reason != "" && !lostNode(e.rec) {
		text := e.rec.Reason
		if _, rest, ok := strings.Cut(text, ": MPI rank "); ok { // the code is on the line before, and the rank twice
			text = "MPI rank " + rest
		}
		e.add(Finding{Kind: KindAbort, Text: text, Hint: "what that rank wrote to its standard error says more"})
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
	groups := groupTasks(e.rec.Tasks, func(t *step.Task) (end, bool) {
		switch {
		case t.State == step.TaskFailed && (t.Stage != "gate" || e.rec.Started == nil):
			return end{}, false // see unstarted; in a step that ran, one at the gate was ended before its turn came
		case t.Status != nil:
			return end{status: *t.Status, sender: e.sender(t.Rank, *t.Status)}, *t.Status != 0
		}
		return end{lost: true}, final && t.State == step.TaskExited
	})
	follows := func(g *group[end]) bool { return g.key.sender == byStepsEnd }
	causes := slices.DeleteFunc(slices.Clone(groups), follows)
	for _, g := range append(causes, slices.DeleteFunc(groups, func(g *group[end]) bool { return !follows(g) })...) {
		k := g.key
		f := Finding{Kind: KindExit, Ranks: g.list()}
		if k.lost {
			f.Text = g.who() + " ended, and it is not known how: the process that waited for them died first"
			e.add(f)
			continue
		}
		f.Text = fmt.Sprintf("%s: %s%s", g.who(), k.status.Describe(), k.sender) + e.endedRest(g.ranks, k.status)
		if k.sender == "" {
			f.Hint = e.endHint(k.status)
		}
		e.add(f)
	}
}

// byStepsEnd is said of tasks that the end of their step has ended.
const byStepsEnd = ", by the step's end"

// endedRest says by which option the end of one of ranks has ended the others, "" where none has.
func (e *explainer) endedRest(ranks []int, status step.ExitStatus) string {
	for _, k := range e.log.kills {
		for _, rank := range ranks {
			option, ok := strings.CutPrefix(k.Text, fmt.Sprintf("task %d: %s, and ", rank, status.Describe()))
			option = strings.TrimSuffix(option, " was given")
			switch {
			case !ok:
			case len(ranks) == 1:
				return "; " + option + " ended the others"
			default:
				return fmt.Sprintf("; %s ended the others at the end of rank %d", option, rank)
			}
		}
	}
	return ""
}

// ending says of a step that still runs who ends it, and what comes next.
func (e *explainer) ending() {
	k := e.log.lastKill()
	if e.rec.State.Final() || k == nil {
		return
	}
	f := Finding{Kind: KindCancel, Text: k.Text}
	switch {
	case k.Signal == nil:
	case k.DurUS == nil:
		f.Text += fmt.Sprintf("; its processes were sent %s %s ago", unix.SignalName(unix.Signal(*k.Signal)), round(e.now.Sub(k.Time)))
		f.Hint = "what SIGKILL does not end is named after UnkillableStepTimeout"
	default:
		wait := time.Duration(*k.DurUS) * time.Microsecond
		f.Text += fmt.Sprintf("; its processes were sent %s %s ago, and get SIGKILL %s after it (KillWait)",
			unix.SignalName(unix.Signal(*k.Signal)), round(e.now.Sub(k.Time)), round(wait))
		f.Hint = "stepctl signal -s KILL " + e.rec.ID.Name() + " does not wait"
	}
	e.add(f)
}

// sender says who sent the signal that ended a rank, where that was heard.
func (e *explainer) sender(rank int, st step.ExitStatus) string {
	sig, ok := st.Signaled()
	if !ok {
		return ""
	}
	for _, k := range e.log.kills {
		if exit, heard := e.log.exits[rank]; k.Signal != nil && *k.Signal == int(sig) && (!heard || !k.Time.After(exit)) {
			return byStepsEnd
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
		return "the code is the program's own: what it wrote says more"
	}
	sig, _ := st.Signaled()
	usual := hint("signal", func(name string) bool { return unix.SignalName(sig) == name })
	switch {
	case sig == unix.SIGKILL && len(e.rec.OOM) > 0:
		return "the kernel has killed for want of memory, see above"
	case usual != "":
		return usual
	case st.CoreDumped():
		return "the core file is where kernel.core_pattern says"
	case sig == unix.SIGSEGV || sig == unix.SIGABRT || sig == unix.SIGFPE:
		return "ulimit -c unlimited before the step lets the kernel write a core file"
	}
	return ""
}

// cancelled finds who has ended the step.
func (e *explainer) cancelled() {
	r := e.rec
	switch {
	case r.State == step.Cancelled:
		e.add(Finding{Kind: KindCancel, Text: "the step was cancelled: " + strings.TrimPrefix(r.Reason, "cancelled "), Hint: "it may be started again as it was"})
	case r.State == step.Timeout:
		e.add(Finding{Kind: KindCancel, Text: "the step's time was over: " + r.Reason, Hint: "-t asks for more time"})
	case (r.State == step.Failed || r.State == step.Completed) && r.Reason != "" && !e.said(r.Reason) && !e.hookFailed(r.Reason):
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
	inOOM := func(k step.OOMKill) bool { return strings.Contains(k.String(), words) }
	if slices.ContainsFunc(e.rec.OOM, inOOM) || e.rec.Aborted && words == e.rec.Reason {
		return true // a finding says it more shortly
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
		e.add(Finding{
			Kind: KindUnkillable, Text: "SIGKILL has not ended " + s.String(),
			Hint: hint("survivor", func(grade string) bool { return grade == string(s.Grade) }),
		})
	}
	if n := e.rec.SurvivorsTotal - len(e.rec.Survivors); n > 0 {
		e.add(Finding{Kind: KindUnkillable, Text: fmt.Sprintf("SIGKILL has not ended %d more of its processes", n)})
	}
}

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
	groups := groupTasks(e.rec.Tasks, func(t *step.Task) (state, bool) {
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
	for _, g := range groups {
		k := g.key
		f := Finding{Kind: KindProcess, Ranks: g.list()}
		if len(g.ranks) == 1 {
			f.Text = g.who() + " is " + g.first.Doing.String()
		} else {
			f.Text = fmt.Sprintf("%s; the first of them is %s", g.who(), g.first.Doing)
		}
		switch {
		case k.stage == eventlog.PhaseTaskProlog:
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
