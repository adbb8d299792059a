package proctrack

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"stepd/step"
)

// An adopted process ends with the step, whether or not the tasks have cgroups with
// controllers of their own; what it has started before does not. It may come before
// stepd has made those.
func TestRootAdopt(t *testing.T) {
	for _, perTask := range []bool{false, true} {
		t.Run(fmt.Sprintf("per task %v", perTask), func(t *testing.T) {
			r, id := testRoot(t), step.ID{Job: 7, Step: step.ExternStep}
			place, err := r.MakeStep(id, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := r.KillStep(shortly(t), id); err != nil {
					t.Error(err)
				}
			})
			early := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
			if err := Adopt(place, early); err != nil {
				t.Fatal(err)
			}
			c := NewCgroup(CgroupConfig{Dir: place.Dir, Tasks: place.Tasks, PerTask: perTask})
			if err := c.Create(); err != nil {
				t.Fatal(err)
			}
			adoptedToo(t, r, id, c, place, early)
		})
	}
}

func adoptedToo(t *testing.T, r *Root, id step.ID, c *Cgroup, place StepCgroups, early int) {
	task := spawn(t, nil, `echo ready; exec sleep 1000`).Process.Pid
	if err := c.Add(0, task); err != nil {
		t.Fatal(err)
	}
	parent := spawn(t, &syscall.SysProcAttr{Setpgid: true}, `sleep 1000 >/dev/null & echo ready; wait`).Process.Pid
	// Its child, which the step has not.
	defer syscall.Kill(-parent, syscall.SIGKILL)
	if err := Adopt(place, parent); err != nil {
		t.Fatal(err)
	}
	pids, want := mustPIDs(t, c), []int{early, task, parent}
	slices.Sort(pids)
	slices.Sort(want)
	if !slices.Equal(pids, want) {
		t.Errorf("the step has %v, want %v", pids, want)
	}
	for pid, want := range map[int]string{0: "cannot adopt process 0", -1: "cannot adopt process -1", 1 << 22: "it has ended"} {
		if err := Adopt(place, pid); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Adopt(%d) = %v, want %q", pid, err, want)
		}
	}
	if err := Adopt(StepCgroups{}, parent); err == nil {
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
