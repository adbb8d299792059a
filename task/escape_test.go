package task

import (
	"slices"
	"strings"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

// TestEscaped: a process that was moved out of the step is reported once.
func TestEscaped(t *testing.T) {
	r := newRig(t)
	r.escaped = []launch.Escape{{PID: 5001, Comm: "a\nb", Cgroup: "/user.slice"}, {PID: 9977, Comm: "d", Cgroup: "/x"}}
	killed := make(chan struct{})
	r.during["kill"] = func() { close(killed) }
	r.during["wait"] = func() { r.st.Cancel("enough"); <-killed }
	for i := range r.ends {
		r.ends[i].Status = step.SignaledBy(9)
	}
	r.run(t)
	const want = `task 1: process 5001 ("a\nb") was moved out of the step's cgroup to "/user.slice"`
	if n := strings.Count(strings.Join(r.said, "\n"), want); n != 1 {
		t.Errorf("said %d times: %q", n, r.said)
	}
	if slices.ContainsFunc(r.said, func(s string) bool { return strings.Contains(s, "9977") }) {
		t.Errorf("the user hears of what is no task: %q", r.said)
	}
}
