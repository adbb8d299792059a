package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"stepd/integration/slurm/cluster"
)

// TestRootSlurmManySteps runs STEPS (60) steps in one job, of which every fifth fails: slurmd's
// spool, its descriptors and the cgroups are then as after the first one.
func TestRootSlurmManySteps(t *testing.T) {
	t.Parallel()
	n := 60
	if text := os.Getenv("STEPS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		must(t, err)
	}
	c := startSite(t, cluster.Site{})
	run := func(steps int) {
		t.Helper()
		script := fmt.Sprintf("for i in $(seq %d); do srun -n1 sh -c \"exit $((i%%5==0))\"; echo $?; done", steps)
		out, err := c.Command(t.Context(), "alice", "sbatch", "-W", "-Q", "-o", "out", "--wrap", script).CombinedOutput()
		if err != nil {
			t.Fatalf("sbatch: %v: %s", err, out)
		}
		text, err := os.ReadFile(c.Path("work/alice/out"))
		must(t, err)
		if ok, bad := strings.Count(string(text), "0\n"), strings.Count(string(text), "\n1\n"); ok+bad != steps || bad != steps/5 {
			t.Errorf("of %d steps %d ended with 0, and %d with 1: %s", steps, ok, bad, text)
		}
	}
	run(1)
	before := stock(t, c)
	run(n)
	eventually(t, faultWait, func() error {
		if after := stock(t, c); after != before {
			return fmt.Errorf("before %s, after %s", before, after)
		}
		return nil
	})
}

// stock counts what steps may leave: files of the spool, directories of cgroups, and slurmd's
// descriptors.
func stock(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	spool, err := os.ReadDir(c.Path("spool"))
	must(t, err)
	roots, err := c.CgroupRoots(cluster.Node)
	must(t, err)
	jobs := 0
	for _, root := range roots {
		dirs, err := filepath.Glob(root + "/job_*")
		must(t, err)
		jobs += len(dirs)
	}
	out, err := c.Command(t.Context(), "root", "sh", "-c", "ls /proc/$(cat $DIR/slurmd.pid)/fd | wc -l").Output()
	must(t, err)
	return fmt.Sprintf("%d files, %d jobs' cgroups, %s descriptors", len(spool), jobs, strings.TrimSpace(string(out)))
}
