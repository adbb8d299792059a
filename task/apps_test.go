package task

import (
	"reflect"
	"testing"

	"stepd/step"
)

func TestLaunchApps(t *testing.T) {
	spec := testSpec()
	spec.NTasks = 3
	l := &step.Launch{TaskEnv: [][]string{{"R=0"}, {"R=1"}, {"R=2"}}}
	launchApps(spec, l)
	if l.TaskArgv != nil || l.TaskCwd != nil {
		t.Errorf("a step of one command got %q, %q", l.TaskArgv, l.TaskCwd)
	}
	spec.Apps = []step.App{
		{NTasks: 2, Argv: step.Raw([]string{"a", "\xff"}), Cwd: []byte("d")},
		{NTasks: 1, Argv: step.Raw([]string{"b"}), Env: step.Raw([]string{"E=1", "R=9"})},
	}
	launchApps(spec, l)
	want := step.Launch{
		TaskArgv: [][]string{{"a", "\xff"}, {"a", "\xff"}, {"b"}}, TaskCwd: []string{"d", "d", ""},
		TaskEnv: [][]string{{"R=0"}, {"R=1"}, {"E=1", "R=9", "R=2"}},
	}
	if !reflect.DeepEqual(*l, want) {
		t.Errorf("got %+v, want %+v", *l, want)
	}

	// Of a step of two nodes only this node's ranks.
	spec.NodeID, spec.Layout = 1, &step.Layout{Nodes: []step.LayoutNode{{Ranks: "0"}, {Ranks: "1-2"}}}
	l = &step.Launch{TaskEnv: [][]string{nil, nil}}
	launchApps(spec, l)
	if want := [][]string{{"a", "\xff"}, {"b"}}; !reflect.DeepEqual(l.TaskArgv, want) {
		t.Errorf("node 1: got %q, want %q", l.TaskArgv, want)
	}
}
