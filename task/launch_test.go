package task

import (
	"reflect"
	"runtime"
	"strings"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

func TestLaunchApps(t *testing.T) {
	spec := testSpec()
	spec.NTasks = 3
	l := &launch.Launch{TaskEnv: [][]string{{"R=0"}, {"R=1"}, {"R=2"}}}
	mustLaunchApps(t, spec, l)
	if l.TaskArgv != nil || l.TaskCwd != nil {
		t.Errorf("a step of one command got %q, %q", l.TaskArgv, l.TaskCwd)
	}
	spec.Apps = []step.App{
		{NTasks: 2, Argv: step.Raw([]string{"a", "\xff"}), Cwd: []byte("d")},
		{NTasks: 1, Argv: step.Raw([]string{"b"}), Env: step.Raw([]string{"E=1", "R=9"})},
	}
	mustLaunchApps(t, spec, l)
	want := launch.Launch{
		TaskArgv: [][]string{{"a", "\xff"}, {"a", "\xff"}, {"b"}}, TaskCwd: []string{"d", "d", ""},
		TaskEnv: [][]string{{"R=0"}, {"R=1"}, {"E=1", "R=9", "R=2"}},
	}
	if !reflect.DeepEqual(*l, want) {
		t.Errorf("got %+v, want %+v", *l, want)
	}

	// Of a step of two nodes only this node's ranks.
	spec.NodeID, spec.Layout = 1, &step.Layout{Nodes: []step.LayoutNode{{Ranks: "0"}, {Ranks: "1-2"}}}
	l = &launch.Launch{TaskEnv: [][]string{nil, nil}}
	mustLaunchApps(t, spec, l)
	if want := [][]string{{"a", "\xff"}, {"b"}}; !reflect.DeepEqual(l.TaskArgv, want) {
		t.Errorf("node 1: got %q, want %q", l.TaskArgv, want)
	}
}

func mustLaunchApps(t *testing.T, spec *step.Spec, l *launch.Launch) {
	t.Helper()
	if err := launchApps(spec, l); err != nil {
		t.Fatal(err)
	}
}

// A long value for each of many tasks is refused before it is made.
func TestLaunchAppsBounded(t *testing.T) {
	t.Parallel()
	const tasks = 1000
	spec := testSpec()
	spec.NTasks = tasks
	long := strings.Repeat("a", 100<<10)
	for name, word := range map[string]string{"the same for all": long, "each its own": long + "%t"} {
		spec.Apps = []step.App{{NTasks: tasks, Argv: step.Raw([]string{"true", word}), Offset: new(int)}}
		l := &launch.Launch{TaskEnv: make([][]string, tasks)}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := launchApps(spec, l)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "come to more than 48 MiB") {
			t.Errorf("%s: %v", name, err)
		}
		if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 3*appWordsMax>>20 {
			t.Errorf("%s: it took %d MiB to refuse that", name, took)
		}
	}
}
