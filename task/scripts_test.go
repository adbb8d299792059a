package task

import (
	"testing"

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
