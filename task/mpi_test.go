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
