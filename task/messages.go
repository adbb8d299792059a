package task

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// newRecord is the record of a step that has not begun: of its tasks it has those
// of this node.
func newRecord(spec *step.Spec, ranks []int, now time.Time) step.Record {
	rec := step.Record{
		ID: spec.ID, Name: spec.Name, UID: spec.User.UID, User: spec.User.Name,
		Node: spec.NodeName, State: step.Pending, NTasks: spec.NTasks,
		Command: spec.Argv, Submitted: now, MPI: spec.MPI, CPUs: spec.CPUs,
		Cgroup: spec.Proctrack.Dir, CgroupTasks: spec.Proctrack.Tasks, CgroupV1: spec.Confine.V1, StepdPID: unix.Getpid(),
		Parent: spec.Parent,
		Tasks:  make([]step.Task, len(ranks)),
	}
	for i, rank := range ranks {
		rec.Tasks[i] = step.Task{Rank: rank, LocalID: i, State: step.TaskPending}
	}
	return rec
}

// Record is a copy of the step's record as it is now.
func (s *Step) Record() step.Record {
	s.mu.Lock()
	rec := s.rec
	rec.Tasks = append([]step.Task(nil), s.rec.Tasks...)
	rec.OOM = append([]step.OOMKill(nil), s.rec.OOM...)
	s.mu.Unlock()
	if s.d.Streams != nil {
		s.d.Streams.Fill(&rec)
	}
	return rec
}

// setState moves the step and tells everybody.
func (s *Step) setState(to step.State) {
	s.mu.Lock()
	st, err := s.rec.State.Move(to)
	s.rec.State = st
	s.mu.Unlock()
	if err != nil {
		s.d.Audience.Log(step.LogError, err.Error())
		return
	}
	s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventState, State: to})
	if !to.Final() {
		s.d.Audience.State(s.Record())
	}
}

// noteReason keeps the first reason; the caller holds mu.
func (s *Step) noteReason(reason string) {
	if s.rec.Reason == "" {
		s.rec.Reason = reason
	}
}

// leadReason puts the cause of the step's end before what was noted meanwhile; the caller
// holds mu.
func (s *Step) leadReason(reason string) {
	switch {
	case s.rec.Reason == "":
		s.rec.Reason = reason
	case !strings.HasPrefix(s.rec.Reason, reason):
		s.rec.Reason = reason + "; " + s.rec.Reason
	}
}

// say sends one line from the node to the user's stderr, with its name before it.
func (s *Step) say(text string) {
	speaker := cmp.Or(s.plan.Spec.Speaker, "stepd-"+s.plan.Spec.NodeName)
	for line := range strings.Lines(text) {
		s.d.Audience.Say(fmt.Sprintf("%s: error: %s", speaker, strings.TrimRight(line, "\n")))
	}
}

// sayError tells the user and the administrator.
func (s *Step) sayError(text string) {
	s.say(text)
	s.d.Audience.Log(step.LogError, text)
}

func (s *Step) sayProblems(problems []string) {
	for _, p := range problems {
		s.sayError(p)
	}
}

func (s *Step) sayCancelled(c *cause) {
	// What a rank has called by itself it has told itself.
	if c.kind == byAbort && c.rank == nil {
		s.say(c.reason)
	}
	why := ""
	if c.kind == byTime {
		why = " DUE TO TIME LIMIT"
	}
	s.say(fmt.Sprintf("*** STEP %s ON %s CANCELLED AT %s%s ***", s.plan.Spec.ID, s.plan.Spec.NodeName,
		s.d.Now().Format("2006-01-02T15:04:05"), why))
}

// visible tells whether what a plugin logs in a hook reaches the user: from
// user_init to task_exit (spank-behaviour §6), not before and not at exit.
// A batch job's output has the latter, too.
func (s *Step) visible(hook string) bool {
	switch hook {
	case "slurm_spank_exit":
		return isBatch(s.plan.Spec)
	case "slurm_spank_user_init", "slurm_spank_task_init_privileged", "slurm_spank_task_init",
		"slurm_spank_task_post_fork", "slurm_spank_task_exit":
		return true
	}
	return false
}

// hear is told every record of the host's log channel, on one goroutine.
func (s *Step) hear(r step.HostRecord) {
	if r.Fail != nil {
		s.hearFailure(r.LocalID, r.Fail)
		return
	}
	if r.Limit != nil {
		s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventLimit, Text: r.Text})
		return
	}
	text := r.Text
	if r.Plugin != "" {
		text = r.Plugin + ": " + text
	}
	// What a user's epilog writes is the user's alone.
	if r.Level != step.LogSpank || r.Plugin != "" {
		s.d.Audience.Log(r.Level, text)
	}
	if r.Hook != "" && !s.visible(r.Hook) {
		return
	}
	switch r.Level {
	case step.LogError:
		s.say(r.Text)
	case step.LogSpank:
		for line := range strings.Lines(r.Text) {
			s.d.Audience.Say(strings.TrimRight(line, "\n"))
		}
	}
}

// hearFailure notes why a task is not exec'd, and tells the user in the words
// of Slurm where it has such.
func (s *Step) hearFailure(id int, f *step.LaunchError) {
	if id < 0 || id >= len(s.plan.Ranks) {
		return // a task that runs as the user wrote it
	}
	s.mu.Lock()
	s.fails[id] = *f
	s.mu.Unlock()
	switch f.Stage {
	case "exec":
		s.say(fmt.Sprintf("execve(): %s: %s%s", f.Object, errnoText(f.Errno), whyWords(f)))
	case "task_init", "task_init_privileged":
		// The chain's own message has told it.
	case "stdio":
		s.say(fmt.Sprintf("Could not open %s file %q: %s%s", s.streamOf(id, f), f.Object, errnoText(f.Errno), whyWords(f)))
	default:
		if f.Errno == 0 {
			s.say(fmt.Sprintf("task %d: %s: %s", f.Rank, f.Stage, f.Object))
			return
		}
		s.say(fmt.Sprintf("task %d: %s: cannot use %q: %s", f.Rank, f.Stage, f.Object, errnoText(f.Errno)))
	}
}

// whyWords is what the task has found out, where it is more than the error says.
func whyWords(f *step.LaunchError) string {
	if f.Why == "" || f.Why == fmt.Sprintf("\"%s\" does not exist", f.Object) {
		return ""
	}
	return " (" + f.Why + ")"
}

// streamOf names the stream whose file a task could not open.
func (s *Step) streamOf(id int, f *step.LaunchError) string {
	for _, st := range s.plan.Streams {
		if st.Kind == step.StreamToPath && st.Path == f.Object && (st.LocalID == id || st.LocalID == step.AllRanks) {
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

func signalName(sig unix.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(sig))
}

// tellHooks writes the hooks that have ended into the event log.
func (s *Step) tellHooks(last bool) {
	if s.host == nil {
		return
	}
	hooks := s.host.Hooks(last)
	s.strictCodes(hooks)
	for calls := range slices.Chunk(hooks, step.HookCallsMax) {
		s.d.Audience.Hooks(step.HookCalls{Base: s.monoBase, Plugin: s.host.PluginName, Calls: calls, Ranks: s.plan.Ranks})
	}
}
