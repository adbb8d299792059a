package integration

import (
	"fmt"
	"strings"
	"testing"
)

// TestRootKindHelpers: what a plugin forks in the host lives as long as the host,
// whatever becomes of the tasks, and not longer. What it does in task_init counts as the task's.
func TestRootKindHelpers(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	n.stack(t, "required "+buildKind(t, n, "helpers.c"))
	steps := 0
	alive := func(t *testing.T) {
		t.Helper()
		steps++
		for _, hook := range []string{"init", "init_post_opt", "user_init", "task_post_fork"} {
			eventually(t, callTimeout, "the helper's word", func() error { // it comes through a pipe
				if got := strings.Count(n.log.String(), "helper of "+hook+" lives in host"); got != steps {
					return fmt.Errorf("the helper of %s was at work in slurm_spank_exit of %d of %d steps", hook, got, steps)
				}
				return nil
			})
		}
		if strings.Contains(n.log.String(), "is dead") {
			t.Errorf("a helper was killed before slurm_spank_exit:\n%s", tail(n.log.String(), 20))
		}
		n.checkClean(t)
	}
	t.Run("the tasks leave nothing", func(t *testing.T) {
		if r := n.ctl(t, "run", "echo", "ran"); r.code != 0 || r.out != "ran\n" {
			t.Errorf("got %v", r)
		}
		alive(t)
	})
	t.Run("task_init is in the task's cgroup", func(t *testing.T) { // as what it allocates is
		r := n.ctl(t, "run", "sh", "-c", `cat /proc/$$/cgroup; echo; echo "$HELPERS_CGROUP"`)
		hook, task, _ := strings.Cut(r.out, "\n\n")
		if r.code != 0 || strings.TrimSpace(hook) != strings.TrimSpace(task) || !strings.Contains(task, "/job_2/tasks/step_0") {
			t.Errorf("got %v", r)
		}
		alive(t)
	})
	t.Run("the tasks leave a daemon", func(t *testing.T) {
		if r := n.ctl(t, "run", "sh", "-c", "setsid sleep 86400 </dev/null >/dev/null 2>&1 & echo ran"); r.code != 0 || r.out != "ran\n" {
			t.Errorf("got %v", r)
		}
		alive(t)
	})
	t.Run("the step is cancelled", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "sleep", "86400"}})
		step := n.running(t)
		if r := n.ctl(t, "cancel", step.id()); r.code != 0 {
			t.Errorf("cancel: %v", r)
		}
		if r := p.wait(t); r.code != 143 {
			t.Errorf("run: want 143, got %v", r)
		}
		alive(t)
	})
}
