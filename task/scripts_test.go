package task

import (
	"strings"
	"testing"

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
