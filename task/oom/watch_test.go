package oom

import (
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

// A task that has ended has no number any more: a process of another job that
// gets it, and is killed there, is none of the step's.
func TestAttributeKnowsEndedTasks(t *testing.T) {
	const dir = "/sys/fs/cgroup/stepd-1/job_1/tasks/step_0"
	limits := []step.MemoryLevel{{Level: "step", Dir: dir}}
	var told []step.OOMKill
	w := New(Config{
		Tasks: dir, Ranks: []int{2, 5}, Confine: step.Confinement{Memory: limits},
		Killed: func(k step.OOMKill) { told = append(told, k) }, Problem: func(text string) { t.Log(text) },
	})
	for id, pid := range []int{500, 501} {
		if err := w.PreLaunchPriv(id, pid); err != nil {
			t.Fatal(err)
		}
	}
	w.PostTerm(launch.TaskEnd{LocalID: 0})
	other := victim{pid: 500, comm: "hog", task: "/stepd-1/job_2/tasks/step_0", full: "/stepd-1/job_2/tasks/step_0"}
	if k, ok := w.attribute(other); ok {
		t.Errorf("the kill of another job's process 500 was taken for %s", k)
	}
	own := victim{pid: 501, comm: "hog", task: "/stepd-1/job_1/tasks/step_0", full: "/stepd-1/job_1/tasks/step_0"}
	k, ok := w.attribute(own)
	if !ok || k.Rank == nil || *k.Rank != 5 || k.Level != "step" {
		t.Errorf("attribute(%+v) = %+v, %v; want task 5, level step", own, k, ok)
	}
	w.cfg.Confine.PerTask = true
	for name, want := range map[string]int{"task_2": 2, "task_5": 5, "task_0": noRank, "task_1": noRank, "task_05": noRank, "other": noRank} {
		if rank, ours := w.rankOf("/stepd-1/job_1/tasks/step_0/" + name); !ours || rank != want {
			t.Errorf("cgroup %s is of rank %d, %v; want %d", name, rank, ours, want)
		}
	}
	if len(told) != 0 {
		t.Errorf("told %v, and no task was killed", told)
	}
}
