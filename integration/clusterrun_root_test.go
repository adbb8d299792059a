package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRootClusterParts: a step of several nodes has its tasks where it should, one
// number everywhere, and one record at its head.
func TestRootClusterParts(t *testing.T) {
	c := startCluster(t, 3, clusterSite{})
	head := c.nodes[0]
	r := head.ctl(t, "run", "-N", "2", "-n", "3", "-i", "none", "-o", "out.%t", "sh", "-c", "echo $SLURM_JOB_ID.$SLURM_STEP_ID $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $SLURMD_NODENAME $SLURM_NNODES $SLURM_NTASKS $SLURM_STEP_NODELIST")
	if r.code != 0 {
		t.Fatalf("got %v\n%s", r, tail(c.nodes[1].log.String(), 30))
	}
	for rank, want := range []string{"1.0 0 0 0 n1 2 3 n[1-2]", "1.0 1 0 1 n1 2 3 n[1-2]", "1.0 2 1 0 n2 2 3 n[1-2]"} {
		b, err := os.ReadFile(filepath.Join(head.wd, fmt.Sprintf("out.%d", rank)))
		if got := strings.TrimSpace(string(b)); err != nil || got != want {
			t.Errorf("task %d said %q (%v), want %q", rank, got, err, want)
		}
	}
	rec := head.show(t, "1.0")
	if rec.State != "COMPLETED" || rec.Node != "n[1-2]" || rec.NTasks != 3 || len(rec.Tasks) != 3 || *rec.ExitCode != 0 {
		t.Errorf("the head's record: %+v", rec)
	}
	c.settled(t)
}
