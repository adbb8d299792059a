package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// launchStages are those of a launch, in their order, and what each does. All
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
		{"gate", "the tasks are let go"},
	}
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
		if s.Node != "" {
			f.Nodes = []string{s.Node}
		}
		switch {
		case launch && s.Error != "":
			f.Text = fmt.Sprintf("the launch stopped at its stage %s, where %s%s: %s", s.Name, does, onNodes(f.Nodes), s.Error)
			f.Hint = stageHint(s.Name)
		case launch && s.Ended == nil && !e.rec.State.Final():
			f.Text = fmt.Sprintf("the launch is at its stage %s, where %s%s, for %s", s.Name, does, onNodes(f.Nodes), round(e.now.Sub(s.Begun)))
			if s.Name == "streams" {
				f.Hint = "it waits for the client that is to hand over the streams: is it stopped?"
			}
		case launch && s.Ended == nil && e.rec.Reason != "" && !e.tasksRan():
			f.Text = fmt.Sprintf("the launch had come to its stage %s, where %s%s", s.Name, does, onNodes(f.Nodes))
		case !launch && s.Error != "":
			f.Text = fmt.Sprintf("at the step's end, %s failed%s: %s", strings.TrimPrefix(s.Name, "undo "), onNodes(f.Nodes), s.Error)
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
	stage string
	errno int
}

// unstarted finds tasks that were never exec'd.
func (e *explainer) unstarted() {
	keys, groups := groupTasks(e.rec.Tasks, func(t *step.Task) (startFailure, bool) {
		// Who waited at the gate has done nothing wrong.
		return startFailure{t.Stage, t.Errno}, t.State == step.TaskFailed && t.Stage != "gate" && t.Stage != ""
	})
	for _, k := range keys {
		g := groups[k]
		text := fmt.Sprintf("%s never ran the command: the stage %s failed", g.who(), k.stage)
		if k.stage == "exec" && len(e.rec.Command) > 0 {
			text = fmt.Sprintf("%s never ran: cannot execute %q", g.who(), e.rec.Command[0])
		}
		if k.errno != 0 {
			text += ": " + unix.Errno(k.errno).Error()
		}
		e.add(Finding{Kind: KindExec, Text: text, Ranks: g.list(), Nodes: g.nodes, Hint: startHint(k)})
	}
}

func startHint(k startFailure) string {
	errno := unix.Errno(k.errno)
	switch {
	case k.stage == "exec" && errno == unix.ENOENT:
		return "the file is not on the node, or its interpreter (#! or ld.so) is not; --chdir tells where relative names begin"
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
