package selection

import (
	"slices"
	"strings"
	"testing"

	"stepd/step"
)

// TestPolicy: what one job has for itself, by SelectType and the CR_ words, on two sockets of two
// cores of two threads; and what a step of it gets.
func TestPolicy(t *testing.T) {
	none := step.Binding{}
	for _, c := range []struct {
		name string
		of   Policy
		held []int
		req  *step.Request
		job  []int
		step []int
		says string
	}{
		{"CR_CPU", Policy{Unit: UnitCPU}, nil, asks(1, 1, none), []int{0}, []int{0}, ""},
		{"CR_CPU beside a thread of the core", Policy{Unit: UnitCPU}, []int{0}, asks(1, 1, none), []int{1}, []int{1}, ""},
		{"CR_Core", Policy{Unit: UnitCore}, nil, asks(1, 1, none), []int{0, 1}, []int{0, 1}, ""},
		{"CR_Core, a task for each thread", Policy{Unit: UnitCore}, nil, asks(3, 1, none), []int{0, 1, 2, 3}, []int{0, 1, 2, 3}, ""},
		{"CR_Core, a core in use", Policy{Unit: UnitCore}, []int{0}, asks(1, 1, none), []int{2, 3}, []int{2, 3}, ""},
		{"CR_Core, no core free", Policy{Unit: UnitCore}, []int{0, 2, 4, 6}, asks(1, 1, none), nil, nil, "with CR_Core there is room for 0 CPUs on 0 free cores of 4"},
		{"CR_Core and what the request says", Policy{Unit: UnitCore}, nil, asks(2, 1, step.Binding{ThreadsPerCore: 1}), []int{0, 1, 2, 3}, []int{0, 1, 2, 3}, ""},
		{"CR_Socket", Policy{Unit: UnitSocket}, nil, asks(1, 1, none), []int{0, 1, 2, 3}, []int{0, 1}, ""},
		{"CR_Socket, a socket in use", Policy{Unit: UnitSocket}, []int{3}, asks(1, 1, none), []int{4, 5, 6, 7}, []int{4, 5}, ""},
		{"CR_Socket, both in use", Policy{Unit: UnitSocket}, []int{3, 4}, asks(1, 1, none), nil, nil, "with CR_Socket there is room for 0 CPUs"},
		{"CR_ONE_TASK_PER_CORE", Policy{OneTaskPerCore: true}, nil, asks(2, 1, none), []int{0, 1, 2, 3}, []int{0, 1, 2, 3}, ""},
		{"CR_ONE_TASK_PER_CORE, the request says two", Policy{OneTaskPerCore: true}, nil, asks(2, 1, step.Binding{NTasksPerCore: 2}), []int{0, 1}, []int{0, 1}, ""},
		{"linear", Policy{Unit: UnitNode}, nil, asks(1, 1, none), []int{0, 1, 2, 3, 4, 5, 6, 7}, []int{0}, ""},
		{"linear, in use", Policy{Unit: UnitNode}, []int{7}, asks(1, 1, none), nil, nil, "it needs the whole node (SelectType=select/linear), and of its 8 CPUs 7 are free"},
		{"linear, shared by the request", Policy{Unit: UnitNode}, []int{7}, &step.Request{NTasks: 1, CPUsPerTask: 1, Overcommit: true}, []int{0}, []int{0}, ""},
		{"linear, too few cores", Policy{Unit: UnitNode}, nil, asks(5, 1, step.Binding{ThreadsPerCore: 1}), nil, nil, "there is room for 4 CPUs on 4 cores"},
		{"linear, too many tasks", Policy{Unit: UnitNode}, nil, asks(9, 1, none), nil, nil, "it needs 9 CPUs on this node, which has 8 CPUs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind := ConsTres
			if c.of.Unit == UnitNode {
				kind = Linear
			}
			n := New(Config{Type: kind, Policy: c.of, CPUs: []int{0, 1, 2, 3, 4, 5, 6, 7}, Cores: twoSockets()})
			n.JobInit(1, Saved{Share: Share{CPUs: c.held}})
			before := n.Info().FreeCPUs
			sh, err := n.Test(c.req, RunNow)
			if got := n.Info().FreeCPUs; got != before {
				t.Errorf("the test has taken %d CPUs", before-got)
			}
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("got %v, %v; want a refusal with %q", sh.CPUs, err, c.says)
				}
				if _, never := n.Test(c.req, TestOnly); (never != nil) == (len(c.held) > 0) {
					t.Errorf("on the empty node: %v", never)
				}
				return
			}
			if err != nil || !slices.Equal(sh.CPUs, c.job) {
				t.Fatalf("the job got %v, %v; want %v", sh.CPUs, err, c.job)
			}
			for _, alone := range []bool{false, true} {
				job := n.Begin(sh)
				if got, err := job.StepPick(c.req, alone); err != nil || !slices.Equal(got.CPUs, c.step) {
					t.Errorf("the step (alone: %v) got %v, %v; want %v", alone, got, err, c.step)
				}
				n.Fini(job)
				n.Fini(job)
				if got := n.Info().FreeCPUs; got != before {
					t.Errorf("%d CPUs are free after it, want %d", got, before)
				}
			}
		})
	}
}
