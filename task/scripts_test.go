package task

import (
	"strings"
	"testing"
	"time"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

func TestTaskScripts(t *testing.T) {
	spec := &step.Spec{}
	if s := taskScripts(spec); len(s) != 0 {
		t.Errorf("a step without scripts got %v", s)
	}
	spec.TaskProlog, spec.TaskEpilog = "/up", "/ue"
	spec.Scripts.Prolog, spec.Scripts.Epilog = "/sp", "/se"
	got := taskScripts(spec)
	want := []launch.TaskScript{
		{Label: "TaskProlog", Path: "/sp"}, {Label: "--task-prolog", Path: "/up"},
		{Epilog: true, Label: "--task-epilog", Path: "/ue", TimeoutS: 5}, {Epilog: true, Label: "TaskEpilog", Path: "/se", TimeoutS: 60},
	}
	for i := range want {
		if len(got) != len(want) || got[i] != want[i] {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	spec.Scripts.TimeoutS = 7
	if got = taskScripts(spec); got[1].TimeoutS != 7 || got[2].TimeoutS != 5 || got[3].TimeoutS != 7 {
		t.Errorf("with PrologEpilogTimeout: %v", got)
	}
}

// TestPrologEvents: the time of the tasks' prologs stands in the event log, from the gate to the last
// exec, and without prologs there is none.
func TestPrologEvents(t *testing.T) {
	for _, path := range []string{"", "/up"} {
		r := newRig(t)
		r.spec.TaskProlog = path
		r.run(t)
		var told []string
		for _, e := range r.events {
			if e.Phase == eventlog.PhaseTaskProlog || e.Event == eventlog.EventTaskExec || e.Phase == "kill" {
				told = append(told, e.Event)
			}
		}
		want := "stage_start task_exec task_exec stage_end stage_end"
		if path == "" {
			want = "task_exec task_exec stage_end"
		}
		// The ends may come before the execs are heard, each with its own.
		if got := strings.Join(told, " "); got != want {
			t.Errorf("with %q: %s, want %s", path, got, want)
		}
	}
}

// names lists the names of the events that keep takes.
func (r *rig) names(keep func(*eventlog.Event) bool) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var told []string
	for i := range r.events {
		if keep(&r.events[i]) {
			told = append(told, r.events[i].Event)
		}
	}
	return strings.Join(told, " ")
}

// await waits until the events that keep takes are want.
func (r *rig) await(t *testing.T, keep func(*eventlog.Event) bool, want string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); r.names(keep) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("got %q, want %q", r.names(keep), want)
			return
		}
	}
}

// TestEpilogEvents: each time in which epilogs of tasks run stands in the event log by itself.
func TestEpilogEvents(t *testing.T) {
	r := newRig(t)
	r.spec.NTasks, r.spec.TaskEpilog = 4, "/ue"
	for rank := range r.spec.NTasks {
		r.places[rank] = launch.HostPlace{Plugin: -1, AtExec: true, Stage: "exec"}
	}
	keep := func(e *eventlog.Event) bool {
		return e.Phase == eventlog.PhaseTaskEpilog || e.Event == eventlog.EventTaskExit
	}
	r.wait = func(ended func(launch.TaskEnd), epilog func(int, int) error) {
		ran := func(ids ...int) {
			for _, id := range ids {
				_ = epilog(id, 6000+id)
			}
			for _, id := range ids {
				ended(launch.TaskEnd{LocalID: id, Lost: id == 1}) // a lost end has no event
			}
		}
		ran(0)
		r.await(t, keep, "stage_end task_exit")
		ran(1, 2)
		r.await(t, keep, "stage_end task_exit stage_end task_exit")
		_ = epilog(3, 6003)
	}
	r.ends = []launch.TaskEnd{{LocalID: 3}}
	r.run(t)
	r.await(t, keep, "stage_end task_exit stage_end task_exit stage_end task_exit")
}

// TestPrologEndsWithLostTask: a task whose end is lost ends the prologs, too.
func TestPrologEndsWithLostTask(t *testing.T) {
	r := newRig(t)
	r.spec.TaskProlog = "/up"
	r.places[1] = launch.HostPlace{Plugin: -1, Stage: eventlog.PhaseTaskProlog}
	keep := func(e *eventlog.Event) bool {
		return e.Phase == eventlog.PhaseTaskProlog || e.Event == eventlog.EventTaskExec || e.Event == eventlog.EventTaskExit
	}
	r.wait = func(ended func(launch.TaskEnd), _ func(int, int) error) {
		r.await(t, keep, "stage_start task_exec")
		ended(launch.TaskEnd{LocalID: 1, Lost: true})
		r.await(t, keep, "stage_start task_exec stage_end")
	}
	r.ends = []launch.TaskEnd{{LocalID: 0}}
	r.run(t)
}
