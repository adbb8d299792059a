package selection

import (
	"slices"
	"strings"
	"testing"

	"stepd/srunopt"
	"stepd/step"
)

// twoSockets is a machine of 2 sockets with 2 cores of 2 threads each: siblings
// side by side, as in many guests.
func twoSockets() []Core {
	return []Core{{0, []int{0, 1}}, {0, []int{2, 3}}, {1, []int{4, 5}}, {1, []int{6, 7}}}
}

func asks(ntasks, cpus int, b step.Binding) *step.Request {
	return &step.Request{NTasks: ntasks, CPUsPerTask: cpus, Binding: b}
}

func TestPoolTakeFor(t *testing.T) {
	one := step.Binding{ThreadsPerCore: 1}
	for _, c := range []struct {
		name string
		held []int
		req  *step.Request
		got  []int
		says string
	}{
		{"nothing said of cores", nil, asks(2, 1, step.Binding{}), []int{0, 1}, ""},
		{"a core for each thread", nil, asks(2, 1, one), []int{0, 1, 2, 3}, ""},
		{"the hint", nil, asks(3, 1, step.Binding{Hint: srunopt.HintNoMultithread}), []int{0, 1, 2, 3, 4, 5}, ""},
		{"two threads are all", nil, asks(2, 2, step.Binding{ThreadsPerCore: 2}), []int{0, 1, 2, 3}, ""},
		{"a task on a core", nil, asks(2, 1, step.Binding{NTasksPerCore: 1}), []int{0, 1, 2, 3}, ""},
		{"two tasks on a core", nil, asks(4, 1, step.Binding{NTasksPerCore: 2}), []int{0, 1, 2, 3}, ""},
		{"a task of two cores", nil, asks(1, 4, step.Binding{NTasksPerCore: 1}), []int{0, 1, 2, 3}, ""},
		{"a task on a socket", nil, asks(2, 1, step.Binding{NTasksPerSocket: 1}), []int{0, 1, 4, 5}, ""},
		{"a core that is used in part is not taken", []int{1}, asks(2, 1, one), []int{2, 3, 4, 5}, ""},
		{"more cores than are free", []int{1}, asks(4, 1, one), nil, "it needs 4 CPUs: with --threads-per-core=1 there is room for 3 CPUs on 3 free cores of 4"},
		{"more than a socket holds", nil, asks(3, 1, step.Binding{NTasksPerSocket: 1}), nil, "room for 2 CPUs"},
		{"more than there are CPUs", nil, asks(9, 1, one), nil, "needs 9 CPUs on this node, which has 8 CPUs"},
		{"overcommit shares", nil, &step.Request{NTasks: 9, CPUsPerTask: 1, Overcommit: true, Binding: one}, []int{0, 1, 2, 3, 4, 5, 6, 7}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newCPUPool([]int{0, 1, 2, 3, 4, 5, 6, 7}, twoSockets()...)
			p.hold(c.held)
			before := p.free()
			got, err := units(p, c.req, nil)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) || p.free() != before {
					t.Fatalf("got %v, %v; want a refusal with %q", got, err, c.says)
				}
				return
			}
			if err != nil || !slices.Equal(got, c.got) || p.free() != before {
				t.Fatalf("got %v, %v; want %v", got, err, c.got)
			}
		})
	}
	p := newCPUPool([]int{0, 1, 2, 3})
	if got, err := units(p, asks(2, 1, one), nil); err != nil || !slices.Equal(got, []int{0, 1}) {
		t.Errorf("cores that are not known: %v, %v", got, err)
	}
}

func TestPoolShareFor(t *testing.T) {
	p := newCPUPool([]int{0, 1, 2, 3}, coresOf(twoSockets(), []int{0, 1, 2, 3})...)
	if len(p.cores) != 2 {
		t.Fatalf("the job has cores %v", p.cores)
	}
	for _, c := range []struct {
		name string
		req  *step.Request
		got  []int
	}{
		{"as many as it needs", asks(2, 1, step.Binding{}), []int{0, 1}},
		{"those that are used least", asks(1, 1, step.Binding{}), []int{2}},
		{"the core that is used least", asks(1, 1, step.Binding{ThreadsPerCore: 1}), []int{2, 3}},
		{"all", asks(1, 1, step.Binding{Whole: true}), []int{0, 1, 2, 3}},
		{"no room: shared", asks(3, 1, step.Binding{NTasksPerCore: 1}), []int{0, 1, 2}},
	} {
		got, err := p.shareFor(c.req)
		p.hold(got)
		if err != nil || len(got) != len(c.got) || c.name != "no room: shared" && !slices.Equal(got, c.got) {
			t.Errorf("%s: got %v, %v; want %v", c.name, got, err, c.got)
		}
	}
	if got := coresOf(twoSockets(), []int{1, 6, 7}); len(got) != 2 || got[0].Socket != 0 || len(got[1].CPUs) != 2 {
		t.Errorf("got %v", got)
	}
}
