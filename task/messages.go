package task

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step/launch"
)

// messages are what a step says: to its user, to the administrator and to the event
// log. Any goroutine may use them.
type messages struct {
	plan     *Plan
	audience Audience
	now      func() time.Time
	warned   map[string]bool // of plugin, which one goroutine calls at a time
	crashes  map[string]bool // of tasks, that the log has; only the loop uses it
}

// event writes a line of the event log, of this moment where e has no time.
func (m *messages) event(e eventlog.Event) {
	if e.Time.IsZero() {
		e.Time = m.now()
	}
	m.audience.Event(e)
}

// span writes the end of a part of the step that began at start and failed with err, if
// that is not nil.
func (m *messages) span(name string, start time.Time, err error) {
	end := m.now()
	e := eventlog.Event{Time: end, Event: eventlog.EventStageEnd, Phase: name, DurUS: new(end.Sub(start).Microseconds())}
	if err != nil {
		e.Text = err.Error()
	}
	m.audience.Event(e)
}

// crashed reports that a plugin's hook has ended a task: to the user of each rank, in the log once
// where it is the same of many.
func (m *messages) crashed(h *launch.HookError) {
	m.noteCrash(h)
	m.say(h.Error())
	alike := *h
	alike.Rank = nil
	if cause := alike.Error(); !m.crashes[cause] && len(m.crashes) < warningsMax {
		if m.crashes == nil {
			m.crashes = make(map[string]bool)
		}
		m.crashes[cause] = true
		m.log(h.Error())
	}
}

// noteCrash writes into the event log that a plugin's hook has ended its process.
func (m *messages) noteCrash(h *launch.HookError) {
	m.event(eventlog.Event{Event: eventlog.EventHookCrash, Plugin: h.Plugin, Hook: h.Hook, Rank: h.Rank, Text: h.Cause})
}

// log writes a line for the administrator.
func (m *messages) log(text string) { m.audience.Log(launch.LogError, text) }

// say sends lines to the user's stderr, with the node's name before each.
func (m *messages) say(text string) { m.sayAs(noTask, "error", text) }

// noTask is the local id of what concerns no single task.
const noTask = -1

// sayAs is say of the task with the local id, or of noTask.
func (m *messages) sayAs(id int, level, text string) {
	speaker := cmp.Or(m.plan.Spec.Speaker, "stepd-"+m.plan.Spec.NodeName)
	for line := range strings.Lines(text) {
		m.sayLine(id, fmt.Sprintf("%s: %s: %s", speaker, level, strings.TrimRight(line, "\n")))
	}
}

func (m *messages) sayLine(id int, line string) {
	if id >= 0 && id < len(m.plan.Ranks) {
		m.audience.SayTask(m.plan.Ranks[id], line)
		return
	}
	m.audience.Say(line)
}

// sayError reports to the user and to the administrator.
func (m *messages) sayError(text string) {
	m.say(text)
	m.log(text)
}

func (m *messages) sayProblems(problems []string) {
	for _, p := range problems {
		m.sayError(p)
	}
}

func (m *messages) sayCancelled(c *cause) {
	if c.elsewhere {
		return
	}
	// What a rank has called by itself it has reported itself.
	if c.kind == byAbort && c.rank == nil {
		m.say(c.reason)
	}
	if c.kind == byRequest && m.plan.Spec.Speaker != "" {
		return // the daemon with a name of its own says it itself, when the command comes
	}
	why := ""
	if c.kind == byTime {
		why = " DUE TO TIME LIMIT"
	}
	what := "STEP " + m.plan.Spec.ID.Name()
	if isBatch(m.plan.Spec) {
		what = fmt.Sprintf("JOB %d", m.plan.Spec.ID.Job)
	}
	m.say(fmt.Sprintf("*** %s ON %s CANCELLED AT %s%s ***", what, m.plan.Spec.NodeName, m.now().Format("2006-01-02T15:04:05"), why))
}

// visible reports whether what a plugin logs in a hook reaches the user: from
// user_init to task_exit (spank-behaviour §6), not before and not at exit.
// A batch job's output has the latter, too.
func (m *messages) visible(hook string) bool {
	switch hook {
	case "slurm_spank_exit":
		return isBatch(m.plan.Spec)
	case "slurm_spank_user_init", "slurm_spank_task_init_privileged", "slurm_spank_task_init",
		"slurm_spank_task_post_fork", "slurm_spank_task_exit":
		return true
	}
	return false
}

// warningsMax bounds what a step remembers of its warnings: a task child may write them as
// the user.
const warningsMax = 1000

// plugin passes on what a plugin or a task's script has logged. An optional plugin that fails
// is told once, whatever the hook: it may fail for each of a thousand tasks.
func (m *messages) plugin(r launch.HostRecord) {
	if r.Level == launch.LogWarning {
		if m.warned[r.Text] || len(m.warned) >= warningsMax {
			return
		}
		if m.warned == nil {
			m.warned = make(map[string]bool)
		}
		m.warned[r.Text] = true
		m.audience.Log(r.Level, r.Line())
		m.sayAs(noTask, "warning", r.Text)
		return
	}
	// What a user's epilog writes is the user's alone.
	if r.Level != launch.LogSpank || r.Plugin != "" {
		m.audience.Log(r.Level, r.Line())
	}
	if r.Hook != "" && !m.visible(r.Hook) {
		return
	}
	switch r.Level {
	case launch.LogError:
		m.sayAs(r.LocalID, "error", r.Text)
	case launch.LogSpank:
		for line := range strings.Lines(r.Text) {
			m.sayLine(r.LocalID, strings.TrimRight(line, "\n"))
		}
	}
}

// launchFailure reports to the user why a task is not exec'd, in the words of Slurm
// where it has such.
func (m *messages) launchFailure(id int, f *launch.LaunchError) {
	say := func(text string) { m.sayAs(id, "error", text) }
	switch f.Stage {
	case "exec":
		say(fmt.Sprintf("execve(): %s: %s%s", f.Object, errnoText(f.Errno), whyWords(f)))
	case "task_init", "task_init_privileged":
		// The chain's own message has said it.
	case "stdio":
		say(fmt.Sprintf("Could not open %s file %q: %s%s", m.streamOf(id, f), f.Object, errnoText(f.Errno), whyWords(f)))
	default:
		if f.Errno == 0 {
			say(fmt.Sprintf("task %d: %s: %s", f.Rank, f.Stage, f.Object))
			return
		}
		say(fmt.Sprintf("task %d: %s: cannot use %q: %s", f.Rank, f.Stage, f.Object, errnoText(f.Errno)))
	}
}

// whyWords is what the task has found out, where it is more than the error says.
func whyWords(f *launch.LaunchError) string {
	if f.Why == "" || f.Why == fmt.Sprintf("\"%s\" does not exist", f.Object) {
		return ""
	}
	return " (" + f.Why + ")"
}

// streamOf names the stream whose file a task could not open.
func (m *messages) streamOf(id int, f *launch.LaunchError) string {
	for _, st := range m.plan.Streams {
		if st.Kind == launch.StreamToPath && st.Path == f.Object && (st.LocalID == id || st.LocalID == launch.AllRanks) {
			return [...]string{"stdin", "stdout", "stderr"}[st.FD]
		}
	}
	return "a standard"
}

// errnoText is strerror(3)'s text: Go's begins with a small letter.
func errnoText(e unix.Errno) string {
	text := e.Error()
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// procName is a process's name, "?" where it has ended.
func procName(pid int) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimSuffix(string(b), "\n")
}
