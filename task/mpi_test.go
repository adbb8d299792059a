package task

import (
	"strings"
	"syscall"
	"testing"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// An MPI plugin sees the tasks of its node by rank, and signals those that it names.
func TestMPITable(t *testing.T) {
	r := newNodeRig(t) // ranks 1 and 3
	r.ends = []launch.TaskEnd{{LocalID: 0, Status: step.ExitedWith(0)}, {LocalID: 1, Status: step.ExitedWith(4)}}
	r.during["wait"] = func() {
		for i, task := range r.job.Tasks() {
			if task.Rank != 2*i+1 || task.PID != 5000+i || task.State == step.TaskExited || task.Status != nil {
				t.Errorf("task %d is told as %+v", i, task)
			}
		}
		if err := r.job.Signal([]int{3, 0}, syscall.SIGUSR1); err != nil {
			t.Error(err)
		}
		if err := r.job.Signal([]int{3}, 65); err == nil || !strings.Contains(err.Error(), "signal 65") {
			t.Errorf("signal 65: %v", err)
		}
	}
	r.run(t)
	var signalled []int
	for _, e := range r.events {
		if e.Event == eventlog.EventTaskSignal {
			signalled = append(signalled, *e.Rank)
		}
	}
	if len(signalled) != 1 || signalled[0] != 3 {
		t.Errorf("signalled ranks are %v, want 3 alone", signalled)
	}
	ended := r.job.Tasks()
	if len(ended) != 2 || ended[1].State != step.TaskExited || ended[1].Status == nil || ended[1].Status.Code() != 4 || ended[1].Program != "" {
		t.Errorf("after the end: %+v", ended)
	}
	if err := r.job.Signal([]int{1}, syscall.SIGUSR1); err == nil {
		t.Error("a step that has ended was signalled")
	}
}

// TestOfComponent: ranks that MPI waits for are counted as the component's record counts them, and
// other components' ranks are named.
func TestOfComponent(t *testing.T) {
	spec := &step.Spec{Request: step.Request{NTasks: 4}, FirstRank: 4, AllLayout: &step.Layout{}}
	for _, c := range []struct{ waits, waiting, want string }{
		{"5-7", "fence 1", "1-3"},
		{"0-3", "fence 1 for ranks 0-3 of all components", ""},
		{"3-4", "fence 1 for ranks 3-4 of all components", ""},
		{"8", "fence 1 for ranks 8 of all components", ""},
		{"", "fence 1", ""},
	} {
		got := ofComponent(spec, step.MPIProgress{Waiting: "fence 1", WaitsFor: c.waits})
		if got.Waiting != c.waiting || got.WaitsFor != c.want {
			t.Errorf("waits for %q: %+v", c.waits, got)
		}
	}
	alone := &step.Spec{Request: step.Request{NTasks: 4}}
	if got := ofComponent(alone, step.MPIProgress{Waiting: "fence 1", WaitsFor: "0-3"}); got.WaitsFor != "0-3" {
		t.Errorf("a step of one component: %+v", got)
	}
}
