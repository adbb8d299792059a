package slurm

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// TestRootTmpfsKilled: a job whose extern step was killed together with its keeper keeps its private
// directories as long as a step of it runs here, and leaves none.
func TestRootTmpfsKilled(t *testing.T) {
	testkit.RequireRoot(t)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	site := cluster.Sites["tmpfs"]
	site.Release, site.Cache, site.Programs, site.StepDaemon, site.Users = "22.05", cache(), programs(t), ours, []string{"alice"}
	c, err := cluster.Start(ctx, site)
	must(t, err)
	defer func() {
		keep(t, c, "ours")
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	run := func(user, script string) {
		t.Helper()
		if out, err := c.Command(ctx, user, "timeout", "120", "sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	step := c.Command(ctx, "alice", "srun", "-Q", "sh", "-c", "echo y > /tmp/y; echo $SLURM_JOB_ID > up.new; mv up.new up; until [ -e go ]; do sleep .05; done; cat /tmp/y > over")
	must(t, step.Start())
	job := 0
	eventually(t, time.Minute, func() error {
		text, err := os.ReadFile(c.Path("work/alice/up"))
		if err == nil {
			_, err = fmt.Sscan(string(text), &job)
		}
		return err
	})
	extern := (&display{n: &displayNode{space: space(t, c)}, job: job}).externs()
	if !killBoth(t, extern) {
		t.Errorf("no extern step's daemon and keeper among %v", extern)
	}
	run("alice", "srun -Q sleep 0.2") // sweeps
	run("alice", "touch go")
	must(t, step.Wait())
	run("alice", "grep -qx y over")
	eventually(t, time.Minute, func() error {
		if _, err := os.Lstat(c.Path(fmt.Sprintf("jc/n1/%d", job))); !os.IsNotExist(err) {
			return fmt.Errorf("the directories of job %d are left: %v", job, err)
		}
		return nil
	})
}
