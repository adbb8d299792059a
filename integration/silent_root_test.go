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

// stopStepd stops stepd alone.
func stopStepd(t *testing.T, step stepDoc) {
	t.Helper()
	must(t, syscall.Kill(step.StepdPID, syscall.SIGSTOP))
	// One thread takes the signal, and on a busy machine another one answers before that.
	eventually(t, callTimeout, "a stopped stepd", func() error { return standsStill(step.StepdPID) })
}

// freezeWhole freezes a step with its daemons, as root may.
func freezeWhole(t *testing.T, step stepDoc) {
	t.Helper()
	var frozen []string
	for _, pid := range []int{step.StepdPID, *step.Tasks[0].PID} {
		for line := range strings.Lines(readFile(t, fmt.Sprintf("/proc/%d/cgroup", pid))) {
			path, v2 := strings.CutPrefix(strings.TrimSpace(line), "0::")
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				dir := filepath.Join(root, path)
				if v2 && os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("1"), 0) == nil {
					frozen = append(frozen, dir)
				}
			}
		}
	}
	if len(frozen) != 2 {
		t.Fatalf("frozen are %q, want the cgroups of stepd and of its tasks", frozen)
	}
	eventually(t, callTimeout, "frozen cgroups", func() error {
		for _, dir := range frozen {
			if events, err := os.ReadFile(filepath.Join(dir, "cgroup.events")); err != nil || !strings.Contains(string(events), "frozen 1") {
				return fmt.Errorf("%s: %q, %v", dir, events, err)
			}
		}
		return nil
	})
}

// TestRootStepdSilent: a stepd that is stopped, or frozen with its tasks, is killed with its step
// after UnkillableStepTimeout when the step is cancelled, or gets SIGKILL; both succeed meanwhile,
// and tell the user.
func TestRootStepdSilent(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "UnkillableStepTimeout=1\n"})
	for _, c := range []struct {
		silence func(*testing.T, stepDoc)
		args    []string
		reason  string
	}{
		{stopStepd, []string{"cancel"}, "cancelled by "},
		{stopStepd, []string{"signal", "-s", "KILL"}, "killed by SIGKILL"},
		{freezeWhole, []string{"cancel"}, "cancelled by "},
	} {
		p, step := startStubborn(t, n)
		c.silence(t, step)
		r := n.ctl(t, append(c.args, step.id())...)
		told := fmt.Sprintf("stepctl: stepd of step %s (pid %d) does not answer: it is killed with its step at 20", step.id(), step.StepdPID)
		if r.code != 0 || !strings.HasPrefix(r.err, told) || strings.Count(r.err, "\n") != 1 {
			t.Errorf("stepctl %q: %v, want %q", c.args, r, told)
		}
		doc := n.ended(t, step.id())
		if doc.State != "CANCELLED" || !strings.HasPrefix(doc.Reason, c.reason) || !strings.HasSuffix(doc.Reason, "did not answer for 1s and was killed") {
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

// TestRootStepdSilentOverTime: a step whose stepd is stopped ends by its time limit, with all of its
// processes.
func TestRootStepdSilentOverTime(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "UnkillableStepTimeout=1\nKillWait=1\n"})
	p, step := startStubborn(t, n, "--time=0:15")
	stopStepd(t, step)
	doc := n.ended(t, step.id())
	reason := fmt.Sprintf("its time limit of 15s has come (--time); stepd (pid %d) did not answer for 10s and was killed", step.StepdPID)
	if doc.State != "TIMEOUT" || doc.Reason != reason {
		t.Errorf("the record: %s %q, want TIMEOUT %q", doc.State, doc.Reason, reason)
	}
	if r := p.wait(t); r.code == 0 {
		t.Errorf("the client: %v", r)
	}
	n.idle(t)
	n.checkClean(t)
	n.serves(t)
}
