package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
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
				f.Text, f.Detail = s.Error, f.Text
			}
			f.Hint = stageHints()[s.Name]
		case launch && s.Ended == nil && e.inProlog(s):
			continue // what its ranks do is said below
		case launch && s.Ended == nil && !e.rec.State.Final():
			f.Text = fmt.Sprintf("for %s the launch is at its stage %s: %s", round(e.now.Sub(s.Begun)), s.Name, does)
			switch s.Name {
			case "prolog":
				f.Hint = fmt.Sprintf("PrologEpilogTimeout in slurm.conf bounds it; stepctl cancel %s ends it", e.rec.ID.Name())
			case "streams":
				f.Hint = "it waits for the client that is to hand over the streams: is it stopped?"
			}
			if f.Hint == "" && len(e.found) == 0 {
				f.Hint = fmt.Sprintf("stepctl cancel %s ends it", e.rec.ID.Name())
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
	pluginHint = "stepctl plugins --check looks at the plugins"
)

func (e *explainer) tasksRan() bool { return e.rec.Started != nil }

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
		var what string // the cause goes first: a path may be long
		switch {
		case k.end != "":
			signal, sender, sent := strings.Cut(k.end, ", ")
			what = fmt.Sprintf("%s in %s", signal, k.stage)
			if sent {
				what += ", " + sender
			}
		case k.stage == "exec" && len(e.rec.Command) > 0:
			what = strconv.Quote(cmp.Or(programOf(k.object), e.rec.Command[0]))
			if k.errno == 0 {
				what = "cannot execute " + what
			}
		case k.stage == "stdio" && k.object == "" && k.errno == 0:
			what = "the step was ended while the files of its standard streams were opened"
		case k.stage == "stdio" && k.object != "":
			what = fmt.Sprintf("%q of a standard stream", k.object)
		default:
			what = fmt.Sprintf("the stage %s failed", k.stage)
		}
		if k.errno != 0 {
			what = unix.Errno(k.errno).Error() + ": " + what
		}
		e.add(Finding{Kind: KindExec, Text: g.who() + " never ran: " + what, Detail: k.why, Ranks: g.list(), Hint: startHint(k)})
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
	case k.stage == eventlog.PhaseTaskProlog:
		return "what TaskProlog, or --task-prolog, wrote to the step's standard error says more"
	case strings.HasPrefix(k.stage, "chdir") && k.errno != 0:
		return "the working directory must be on the node and the user's to enter: --chdir names another one"
	case errno == unix.EAGAIN:
		return "a limit of processes is reached: ulimit -u, pids.max"
	case errno == unix.ENOMEM:
		return "there is no memory left"
	}
	return ""
}

// state finds what the step as a whole does.
func (e *explainer) state() {
	r := e.rec
	if r.State == step.Pending {
		f := Finding{Kind: KindState, Text: "it waits for its client to launch it", Hint: "stepctl cancel " + r.ID.Name() + " gives its CPUs back"}
		if r.LauncherPID > 0 {
			f.Text = fmt.Sprintf("it waits for its client (pid %d) to run the plugins' local hooks", r.LauncherPID)
		}
		e.add(f)
	}
	if r.Suspended != nil && !r.State.Final() {
		by := "a signal"
		if r.SuspendedBy != nil {
			by = fmt.Sprintf("uid %d", *r.SuspendedBy)
		}
		f := Finding{Kind: KindSuspended, Text: fmt.Sprintf("by %s since %s: its processes stand still", by, r.Suspended.Format(time.RFC3339)), Hint: "stepctl resume " + fmt.Sprint(r.ID.Job)}
		e.add(f)
	}
	switch {
	case lostNode(r):
		e.add(Finding{Kind: KindNode, Text: r.Reason, Hint: "it may be started again as it was; the log of that node's slurmd has more"})
	case r.State == step.NodeFail, r.State == step.Failed && r.StepdLost && r.Reason != "":
		// A step over several nodes has a record on each. Where to look is the hint's.
		text := strings.Replace(r.Reason, " (slurmd's log and the kernel's may say why)", "", 1)
		if r.Node != "" {
			text = r.Node + ": " + text
		}
		e.add(Finding{Kind: KindNode, Text: text, Hint: "start it again; noded's or slurmd's log and dmesg may say why", says: r.Reason})
	}
}

// drained says that the step's end has drained its node: after the cause.
func (e *explainer) drained() {
	if e.rec.Drain == "" {
		return
	}
	f := Finding{Kind: KindDrain, Text: "node drained: " + e.rec.Drain, Hint: "stepctl node resume, when that is mended"}
	if e.said(e.rec.Drain) {
		f.Text = "node drained for it"
	}
	e.add(f)
}

// spawned says which step's MPI program has started this one.
func (e *explainer) spawned() {
	if e.rec.Parent != nil {
		e.add(Finding{Kind: KindSpawn, Text: fmt.Sprintf("the step was spawned by the MPI program of step %s", e.rec.Parent.Name())})
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
			f.Text = g.who() + " ended, and it is not known how: the parent process died first"
			e.add(f)
			continue
		}
		f.Text = fmt.Sprintf("%s: %s%s", g.who(), k.status.Describe(), k.sender) + e.endedRest(g.ranks, k.status)
		switch k.sender {
		case "":
			f.Hint = e.endHint(k.status)
		case byStepsEnd: // a finding before it says why
		default:
			f.Hint = "it may be started again as it was"
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
	f := Finding{Kind: KindCancel, Text: k.Text, Hint: "what SIGKILL does not end is named after UnkillableStepTimeout"}
	if k.Signal != nil {
		f.Text += fmt.Sprintf(": %s %s ago", unix.SignalName(unix.Signal(*k.Signal)), round(e.now.Sub(k.Time)))
	}
	if k.DurUS != nil {
		wait := time.Duration(*k.DurUS) * time.Microsecond
		f.Text += fmt.Sprintf(", SIGKILL %s after (KillWait)", round(wait))
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
		return ", from stepctl or the client"
	}
	return ""
}

// endHint says what a status usually means.
func (e *explainer) endHint(st step.ExitStatus) string {
	if code, ok := st.Exited(); ok {
		name := unix.SignalName(unix.Signal(code - 128))
		switch {
		case code == 126:
			return "chmod +x, or what it wrote: 126 is a shell's word for a file that it cannot execute"
		case code == 127:
			return "what it wrote names what is missing: 127 is a command to a shell, a library or symbol to ld.so"
		case code > 128 && code < 193 && name != "":
			return fmt.Sprintf("start that command itself: %d is a shell's word for a child that %s has ended", code, name)
		}
		return "what it wrote says more: the code is the program's own"
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
	return "strace -f COMMAND shows its sender (si_pid): it is not stepd or stepctl"
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
		f := Finding{Kind: KindState, Text: r.Reason}
		if strings.HasPrefix(r.Reason, "spankhost (pid ") {
			f.Hint = "start it again; noded's or slurmd's log and dmesg may say why"
		}
		e.add(f)
	}
}

// said reports whether a finding has these words, or will have: how a task ended.
func (e *explainer) said(words string) bool {
	for i := range e.rec.Tasks {
		t := &e.rec.Tasks[i]
		if words == t.EndWords() || t.Status != nil && words == fmt.Sprintf("task %d: %s", t.Rank, t.Status.Describe()) { // of an older stepd
			return true
		}
	}
	inOOM := func(k step.OOMKill) bool { return strings.Contains(k.String(), words) }
	if slices.ContainsFunc(e.rec.OOM, inOOM) || e.rec.Aborted && words == e.rec.Reason {
		return true // a finding says it more shortly
	}
	return slices.ContainsFunc(e.found, func(f Finding) bool {
		return f.says == words || strings.Contains(f.Text, words) || strings.Contains(f.Detail, words)
	})
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
			Kind: KindUnkillable, Text: s.String(),
			Hint: hint("survivor", func(grade string) bool { return grade == string(s.Grade) }),
		})
	}
	if n := e.rec.SurvivorsTotal - len(e.rec.Survivors); n > 0 {
		e.add(Finding{Kind: KindUnkillable, Text: fmt.Sprintf("%d more of its processes", n)})
	}
}
