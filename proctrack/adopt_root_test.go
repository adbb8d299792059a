package proctrack

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// An adopted process ends with the step, whether or not the tasks have cgroups with
// controllers of their own; what it has started before does not.
func TestRootAdopt(t *testing.T) {
	r, id, c := testStep(t)
	place := StepCgroups{Dir: c.cfg.Dir, Tasks: c.cfg.Tasks}
	task := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
	if err := c.Add(0, task); err != nil {
		t.Fatal(err)
	}
	parent := spawn(t, &syscall.SysProcAttr{Setpgid: true}, `sleep 1000 >/dev/null & echo ready; wait`)
	defer syscall.Kill(-parent.Process.Pid, syscall.SIGKILL) // its child, which the step has not
	for range 2 {                                            // the second finds the cgroup made
		if err := Adopt(place, parent.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	if pids := mustPIDs(t, c); !slices.Contains(pids, parent.Process.Pid) || !slices.Contains(pids, task) || len(pids) != 2 {
		t.Errorf("the step has %v, want %d and the adopted %d", pids, task, parent.Process.Pid)
	}
	for pid, want := range map[int]string{0: "cannot adopt process 0", -1: "cannot adopt process -1", 1 << 22: "it has ended"} {
		if err := Adopt(place, pid); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Adopt(%d) = %v, want %q", pid, err, want)
		}
	}
	if err := Adopt(StepCgroups{}, parent.Process.Pid); err == nil {
		t.Error("a step without cgroups has adopted a process")
	}
	if err := r.KillStep(shortly(t), id); err != nil {
		t.Fatal(err)
	}
	wantEmpty(t, c)
	if pids, err := os.ReadFile(filepath.Join(place.Tasks, adoptedName, "cgroup.procs")); err == nil {
		t.Errorf("the adopted process's cgroup is there, with %q", pids)
	}
}
