package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// machineProcesses is how many processes and threads the machine can have.
func machineProcesses(t *testing.T) int {
	t.Helper()
	least := 0
	for _, name := range []string{"pid_max", "threads-max"} {
		b, err := os.ReadFile("/proc/sys/kernel/" + name)
		must(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		must(t, err)
		if least == 0 || n < least {
			least = n
		}
	}
	return least
}

// TestRootProcessLimit: a step has a share of the machine's processes and no more, and who reaches it
// is told; another user's step and the step's own end need none of them.
func TestRootProcessLimit(t *testing.T) {
	for _, tc := range []struct{ name, cgroup string }{{"v2", ""}, {"v1", forceV1}} {
		t.Run(tc.name, func(t *testing.T) {
			waits(t)
			if tc.cgroup == forceV1 {
				needFreezer(t)
			}
			// About 150: fewer than a shell with 400 children has.
			n := startNode(t, site{Cgroup: tc.cgroup, Slurm: "KillWait=1\n", Stepd: fmt.Sprintf("StepProcessesPercent=%.4f\n", 150.5*100/float64(machineProcesses(t)))})
			// It tries again, as bash does, and goes on with what it has.
			bomb := "for i in $(seq 400); do (trap '' TERM; exec sleep 86396) & echo $i; done; echo ready; wait"
			p := n.start(t, call{args: []string{"run", "-n2", "--overcommit", "sh", "-c", bomb}, limit: 3 * callTimeout}) // the guest forks slowly
			id := n.running(t).id()
			n.logs(t, "the step has reached the limit of 150 processes and threads")
			if r := n.do(t, call{args: []string{"run", "-n4", "echo", "ran"}, uid: bob.uid}); r.out != strings.Repeat("ran\n", 4) {
				t.Errorf("another user: %v", r)
			}
			n.ctl(t, "cancel", id) // its shells may have given up
			r := p.wait(t)
			contains(t, "stderr", r.err, "the step has reached the limit of 150 processes and threads: fork fails in it (StepProcessesPercent of stepd.conf)")
			if c := strings.Count(r.err, "has reached the limit"); c != 1 {
				t.Errorf("it is told %d times", c)
			}
			n.checkClean(t)
		})
	}
	t.Run("none", func(t *testing.T) {
		n := startNode(t, site{Stepd: "StepProcessesPercent=0\n"})
		if r := n.ctl(t, "run", "--dry-run", "true"); strings.Contains(r.out, "pids.max") {
			t.Errorf("dry run: %v", r)
		}
	})
}
