package slurm

import (
	"strings"
	"syscall"
	"testing"

	"stepd/integration/slurm/cluster"
)

// TestRootFullSpool: a step that finds no room for a file in slurmd's spool is refused, and srun
// prints why. slurmd drains its node, as under Slurm's own step daemon (compared by hand); nothing
// of the step is left, and with room again the next one runs.
func TestRootFullSpool(t *testing.T) {
	t.Parallel()
	c := startSite(t, cluster.Site{})
	run := func(user, script string) string {
		t.Helper()
		out, err := c.Command(t.Context(), user, "timeout", "40", "sh", "-c", preamble+script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
		return string(out)
	}
	must(t, c.End(t.Context(), "slurmd", syscall.SIGTERM))
	run("root", "mount -t tmpfs -o nr_inodes=64,mode=755 tmpfs spool")
	must(t, c.StartSlurmd(t.Context()))
	run("alice", "srun true")
	before := run("root", `cd spool; i=0; while sh -c ": >fill.$i" 2>/dev/null; do i=$((i+1)); done; ls`)
	if got := run("alice", "srun true || echo rc=$?"); !strings.Contains(got, "failed on node n1: No space left on device") || !strings.Contains(got, "rc=") {
		t.Errorf("srun printed %q", got)
	}
	if got := run("root", "sinfo -h -o '%T %E'; squeue -h"); got != "drained SlurmdSpoolDir is full\n" {
		t.Errorf("sinfo and squeue: %q", got)
	}
	if after := run("root", "ls spool"); after != before {
		t.Errorf("the spool has\n%s, had\n%s", after, before)
	}
	if got := run("root", "ps -eo args= | grep -E '^(slurmstepd|stepkeeper|spankhost)'; true"); got != "" {
		t.Errorf("processes are left: %s", got)
	}
	run("root", "rm spool/fill.*; scontrol update nodename=n1 state=resume; till '[ $(sinfo -h -o %T) = idle ]'")
	if got := run("alice", "srun echo next"); got != "next\n" {
		t.Errorf("the next step printed %q", got)
	}
}
