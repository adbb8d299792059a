package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"stepd/internal/linux"
)

// standsStill is an error until all threads of a process stand still.
func standsStill(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range threads {
		stat, gone := os.ReadFile(path)
		if _, f := linux.ParseStat(stat); gone == nil && (len(f) == 0 || f[0] != "T") {
			return fmt.Errorf("a thread is %q", stat)
		}
	}
	return err
}

// TestRootStepdSilent: a stepd that is stopped is killed with its step after UnkillableStepTimeout
// when the step is cancelled, or gets SIGKILL; both succeed meanwhile.
func TestRootStepdSilent(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "UnkillableStepTimeout=1\n"})
	for reason, args := range map[string][]string{"cancelled by ": {"cancel"}, "killed by SIGKILL": {"signal", "-s", "KILL"}} {
		p, step := startStubborn(t, n)
		must(t, syscall.Kill(step.StepdPID, syscall.SIGSTOP))
		// One thread takes the signal, and on a busy machine another one answers before that.
		eventually(t, callTimeout, "a stopped stepd", func() error { return standsStill(step.StepdPID) })
		if r := n.ctl(t, append(args, step.id())...); r.code != 0 {
			t.Errorf("stepctl %q: %v", args, r)
		}
		doc := n.ended(t, step.id())
		if doc.State != "CANCELLED" || !strings.HasPrefix(doc.Reason, reason) || !strings.HasSuffix(doc.Reason, "did not answer for 1s and was killed") {
			t.Errorf("the record: %s %q", doc.State, doc.Reason)
		}
		if r := p.wait(t); r.code == 0 {
			t.Errorf("the client: %v", r)
		}
		n.idle(t)
		n.checkClean(t)
	}
	n.serves(t)
}
