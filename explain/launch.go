package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// launchStages are the stages of a launch, in their order, and what each does. All
// others belong to a step's end.
func launchStages() []struct{ name, does string } {
	return []struct{ name, does string }{
		{"prolog", "the job's prolog runs"},
		{"proctrack", "the step's cgroups are made"},
		{"spankhost", "the SPANK host is started"},
		{"load", "the plugins are loaded"},
		{"init", "slurm_spank_init and slurm_spank_init_post_opt are called"},
		{"mpi_prefork", "the MPI plugin prepares"},
		{"task_pre_setuid", "the step's limits are set"},
		{"streams", "the tasks' streams are waited for and handed over"},
		{"user_init", "slurm_spank_user_init is called"},
		{"fork", "the tasks are forked"},
		{"track", "the tasks are put into their cgroups"},
		{"task_pre_launch_priv", "the tasks are bound and limited"},
		{"task_post_fork", "slurm_spank_task_post_fork is called"},
		{"gate", "the tasks are started"},
	}
}

// StageWords is what a stage of the launch does: "the plugins are loaded"; of one that
// is not known its name.
func StageWords(name string) string {
	if does, ok := stageDoes(name); ok {
		return does
	}
	return "stage " + name
}

func stageDoes(name string) (does string, ofLaunch bool) {
	for _, s := range launchStages() {
		if s.name == name {
			return s.does, true
		}
	}
	return "", false
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
		case launch && s.Error != "":
			f.Text = fmt.Sprintf("the launch stopped at its stage %s, where %s: %s", s.Name, does, s.Error)
			f.Hint = stageHint(s.Name)
		case launch && s.Ended == nil && !e.rec.State.Final():
			f.Text = fmt.Sprintf("the launch is at its stage %s, where %s, for %s", s.Name, does, round(e.now.Sub(s.Begun)))
			if s.Name == "streams" {
				f.Hint = "it waits for the client that is to hand over the streams: is it stopped?"
			}
		case launch && s.Ended == nil && e.rec.Reason != "" && !e.tasksRan():
			f.Text = fmt.Sprintf("the launch had reached its stage %s, where %s", s.Name, does)
		case !launch && s.Error != "":
			f.Text = fmt.Sprintf("at the step's end, %s failed: %s", strings.TrimPrefix(s.Name, "undo "), s.Error)
		default:
			continue
		}
		e.add(f)
	}
}

func stageHint(name string) string {
	switch name {
	case "prolog":
		return "noded's log has what the prolog said; a failed prolog drains the node"
	case "proctrack", "track", "task_pre_setuid":
		return "noded --check, and docs/cgroups.md"
	case "load", "init", "user_init", "task_post_fork":
		return "stepctl plugins --check looks at the plugins"
	}
	return ""
}

func (e *explainer) tasksRan() bool { return e.rec.Started != nil }

// plugins finds hooks that failed, crashed or hang.
func (e *explainer) plugins() {
	crash := e.rec.PluginCrash
	if crash != nil {
		kind := "optional: it may be left out with QuarantineAfter"
		if crash.Required {
			kind = "required: no step runs without it"
		}
		e.add(Finding{
			Kind: KindPlugin, Text: fmt.Sprintf("plugin %q crashed or was ended in %s; it is %s", crash.Path, crash.Hook, kind),
			Hint: "stepctl plugins --check; a core file of spankhost has the place",
		})
	}
	for _, h := range e.log.hooks {
		f := Finding{Kind: KindPlugin, Ranks: step.FormatCPUList(h.ranks)}
		where := fmt.Sprintf("plugin %q: %s", h.plugin, h.hook)
		if len(h.ranks) > 0 {
			slices.Sort(h.ranks)
			f.Ranks = step.FormatCPUList(h.ranks)
			where += " (" + ranksText(h.ranks) + ")"
		}
		switch {
		case h.rc != nil:
			f.Text = fmt.Sprintf("%s returned %d", where, *h.rc)
			f.Hint = "what the plugin said stands in noded's log, and in the step's standard error"
		case !e.rec.State.Final():
			f.Text = where + " has not returned"
			f.Hint = "HookTimeout in stepd.conf bounds hooks"
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
}

// unstarted finds tasks that were never exec'd.
func (e *explainer) unstarted() {
	keys, groups := groupTasks(e.rec.Tasks, func(t *step.Task) (startFailure, bool) {
		// Who waited at the gate has done nothing wrong.
		return startFailure{t.Stage, t.Errno, t.Object, t.Why}, t.State == step.TaskFailed && t.Stage != "gate" && t.Stage != ""
	})
	for _, k := range keys {
		g := groups[k]
		text := fmt.Sprintf("%s never ran the command: the stage %s failed", g.who(), k.stage)
		switch {
		case k.stage == "exec" && len(e.rec.Command) > 0:
			text = fmt.Sprintf("%s never ran: cannot execute %q", g.who(), cmp.Or(programOf(k.object), e.rec.Command[0]))
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
	errno := unix.Errno(k.errno)
	if hint := whyHint(k); hint != "" {
		return hint
	}
	switch {
	case k.stage == "exec" && errno == unix.ENOENT:
		return "the file is not on the node, or its interpreter (#! or ld.so) is not; --chdir says where relative names begin"
	case k.stage == "exec" && errno == unix.EACCES:
		return "it is no executable file, or its file system is mounted noexec, or a folder on the way may not be searched"
	case k.stage == "exec" && errno == unix.ENOEXEC:
		return "a script begins with #! and its interpreter; a program must be built for this machine"
	case k.stage == "exec" && errno == unix.E2BIG:
		return "arguments and environment are too long; --export=NONE sends less"
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

// whyHint is what to do about what a task has found out about its file.
func whyHint(k startFailure) string {
	has := func(words string) bool { return strings.Contains(k.why, words) }
	switch {
	case k.why == "":
		return ""
	case has("outside of it, it does"):
		return "the job's container has directories of its own: put the file elsewhere, or copy it there in a step of the job"
	case has("carriage return"):
		return "take the carriage returns away: sed -i 's/\\r$//' FILE"
	case has("the loader (PT_INTERP)"):
		return "the program was built for another C library: build it on this node, or install that library"
	case has("the interpreter (#!)"):
		return "install the interpreter on the node, or name another one in the first line"
	case has("no directory of PATH"):
		return "give its path, or set PATH: --export=ALL hands on the one of this shell"
	case has("has no PATH"):
		return "--export without PATH leaves none: --export=PATH,..., or the program's whole path"
	case has("mounted noexec"):
		return "put the program on a file system from which programs may be executed"
	case has("no user may execute it"):
		return "chmod +x makes it executable"
	case has("may make no file in it"), has("may not open it so"):
		return "--output, --error and --input are opened as the user, on the node: name a directory that is the user's to write"
	case has("may not enter it"):
		return "its owner opens it by chmod +x; a root-squashed file server hides it from root alone"
	case has("is a program for"):
		return "build it for this node's machine"
	case has("is empty"):
		return "was it copied whole? a full file system leaves empty files"
	case has("does not begin with #!"):
		return "begin a script with a line such as #!/bin/sh"
	case has("the environment"):
		return "arguments and environment are too long together, or one of them alone; --export=NONE sends less"
	case has("is a link to"):
		return "the link leads nowhere on this node: is the file system behind it mounted here?"
	case has("the directory") && has("does not exist"):
		return "the directory is not on this node: is its file system mounted here?"
	}
	return ""
}

// memory finds processes that ended for want of memory.
func (e *explainer) memory() {
	const most = 8
	for i, k := range e.rec.OOM {
		if i == most {
			e.add(Finding{Kind: KindMemory, Text: fmt.Sprintf("%d more processes were killed for want of memory", len(e.rec.OOM)-most)})
			break
		}
		f := Finding{Kind: KindMemory, Text: k.String()}
		if k.Rank != nil {
			f.Ranks = fmt.Sprint(*k.Rank)
		}
		e.add(f)
	}
	if e.rec.State == step.OutOfMemory && len(e.rec.OOM) == 0 {
		e.add(Finding{Kind: KindMemory, Text: cmp.Or(e.rec.Reason, "the step's memory limit was reached"), Hint: "--mem or --mem-per-cpu asks for more"})
	}
}
