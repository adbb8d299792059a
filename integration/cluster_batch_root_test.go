package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// submits submits a batch job at the node, and returns its number.
func (n *node) submits(t testing.TB, args ...string) string {
	t.Helper()
	r := n.do(t, call{args: append([]string{"batch", "--parsable", "-o", "/dev/null"}, args...), env: n.withStepctl()})
	if r.code != 0 {
		t.Fatal(r)
	}
	return strings.TrimSpace(r.out)
}

// pends waits until the batch job waits with a reason that begins so.
func (n *node) pends(t testing.TB, job, words string) {
	t.Helper()
	eventually(t, callTimeout, words, func() error {
		if doc := n.show(t, job+".batch"); doc.State != "PENDING" || !strings.HasPrefix(doc.Reason, words) {
			return fmt.Errorf("job %s is %s: %s", job, doc.State, doc.Reason)
		}
		return nil
	})
}

// reads waits until a file in the working directory holds the text, and no more.
func (n *node) reads(t testing.TB, name, want string) {
	t.Helper()
	eventually(t, callTimeout, name, func() error {
		b, err := os.ReadFile(filepath.Join(n.wd, name))
		if err == nil && string(b) != want {
			err = fmt.Errorf("got %q, want %q", b, want)
		}
		return err
	})
}

// TestRootClusterBatch: a batch job of several nodes waits at its head until all of them
// have room, has a share of each, takes new ones when it has lost one, and ends on all.
func TestRootClusterBatch(t *testing.T) {
	waits(t)
	// Nobody counts as lost that a busy machine starts slowly, until that is what is tested.
	c := startCluster(t, 3, clusterSite{Timeout: 30, site: site{Slurm: "KillWait=1\n"}, Tamper: func(c *cluster) {
		must(t, os.WriteFile(filepath.Join(c.dir, "prolog"), []byte(fmt.Sprintf(`#!/bin/sh
echo "$SLURM_JOB_ID $SLURM_JOB_NUM_NODES $SLURM_NODELIST $SLURM_JOB_CPUS_PER_NODE" >>%s/prologs.$SLURMD_NODENAME
`, c.dir)), 0o755))
		for i := range c.nodes {
			f := c.nodes[i].path("slurm.conf")
			must(t, os.WriteFile(f, []byte(readFile(t, f)+"PrologFlags=Alloc\nProlog="+c.dir+"/prolog\n"), 0o644))
		}
	}})
	n1, n2, n3 := c.nodes[0], c.nodes[1], c.nodes[2]
	t.Run("script", func(t *testing.T) {
		n2.do(t, call{args: []string{"run", "true"}}) // its numbers are ahead
		n1.userFile(t, "job.sh", `#!/bin/sh
#SBATCH -N 2 -n 4 -x n3
echo $SLURM_JOB_NODELIST $SLURM_NNODES $SLURM_JOB_NUM_NODES $SLURM_NTASKS "$SLURM_TASKS_PER_NODE" "$SLURM_JOB_CPUS_PER_NODE" $SLURMD_NODENAME
stepctl run -l sh -c 'echo $SLURM_STEP_ID $SLURMD_NODENAME $SLURM_NODEID $SLURM_LOCALID $SLURM_JOB_NODELIST' | sort
stepctl run -w n2 -n2 sh -c 'echo $SLURM_STEP_ID $SLURMD_NODENAME $SLURM_STEP_NODELIST'
exit 3
`, 0o755)
		r := n1.do(t, call{args: []string{"batch", "-W", "--parsable", "-o", "out", "job.sh"}, env: n1.withStepctl()})
		if r.code != 3 || r.out != "2\n" {
			t.Errorf("got %v", r)
		}
		n1.reads(t, "out", `n[1-2] 2 2 4 2(x2) 2(x2) n1
0: 0 n1 0 0 n[1-2]
1: 0 n1 0 1 n[1-2]
2: 0 n2 1 0 n[1-2]
3: 0 n2 1 1 n[1-2]
1 n2 n2
1 n2 n2
`)
		if got := readFile(t, filepath.Join(c.dir, "prologs.n2")); !strings.HasSuffix(got, "2 2 n[1-2] 2(x2)\n") {
			t.Errorf("the prolog on n2: %q", got)
		}
		for _, d := range []struct{ args, want string }{
			{"-N4", "4 nodes are needed and 3 of 3 can be had"}, {"-w n2", "a batch job has the node among its own whose noded is asked for it, here n1"},
		} {
			r := n1.ctl(t, append(strings.Fields("batch --wrap=true "+d.args), "-o", "/dev/null")...)
			refused(t, d.args, r, d.want)
		}
		c.jobless(t)
	})
	loop := func(gate string) string { return "--wrap=while test ! -e " + gate + "; do sleep 0.05; done" }
	t.Run("waits", func(t *testing.T) {
		full := []string{n2.submits(t, "-n4", loop("never")), n3.submits(t, "-n4", loop("never"))}
		for i, n := range []*node{n2, n3} {
			eventually(t, callTimeout, "the job of "+n.name, func() error {
				if doc := n.show(t, full[i]+".batch"); doc.State != "RUNNING" {
					return errors.New(doc.State)
				}
				return nil
			})
		}
		job := n1.submits(t, "-N2", `--wrap=touch up
while test ! -e go; do sleep 0.05; done
stepctl run sh -c "echo \$SLURMD_NODENAME" | sort >steps
touch stepped
while test ! -e never; do sleep 0.05; done`)
		n1.pends(t, job, "Resources: the step does not fit: 2 nodes are needed and 1 of 3 can be had")
		n1.kill9(t)
		n1.boot(t)
		n1.pends(t, job, "Resources: the step does not fit: 2 nodes are needed and 1 of 3 can be had")
		must(t, n3.ctlErrorRoot(t, "cancel", full[1]))
		n1.reads(t, "up", "")
		for _, n := range []*node{n3, n1} { // while it runs: it goes on
			n.kill9(t)
			n.boot(t)
		}
		n1.userFile(t, "go", "", 0o644)
		n1.reads(t, "stepped", "")
		n1.reads(t, "steps", "n1\nn3\n")
		// Whoever ends its share ends the job, which does not run again.
		must(t, n3.ctlErrorRoot(t, "cancel", job))
		eventually(t, callTimeout, "the end", func() error {
			if doc := n1.show(t, job+".batch"); doc.State != "CANCELLED" || !strings.HasPrefix(doc.Reason, "node n3: ") {
				return fmt.Errorf("job %s is %s: %s", job, doc.State, doc.Reason)
			}
			return nil
		})
		must(t, n2.ctlErrorRoot(t, "cancel", full[0]))
		c.jobless(t)
	})
	t.Run("a node is lost", func(t *testing.T) {
		job := n1.submits(t, "-N2", `--wrap=echo "$SLURM_RESTART_COUNT $SLURM_JOB_NODELIST" >>runs
while test ! -e never; do sleep 0.05; done`)
		n1.reads(t, "runs", " n[1-2]\n")
		for _, n := range []*node{n2, n1} {
			n.kill9(t)
			f := n.path("stepd.conf")
			must(t, os.WriteFile(f, []byte(strings.Replace(readFile(t, f), "NodeTimeout=30", "NodeTimeout=2", 1)), 0o600))
		}
		n1.boot(t)
		n1.reads(t, "runs", " n[1-2]\n1 n[1,3]\n")
		n1.logs(t, `node \"n2\" is lost: its noded has not answered for 2s (NodeTimeout)`)
		n2.boot(t)
		eventually(t, 20*time.Second, "the end of n2's share", func() error {
			if jobs := n2.status(t).Jobs; len(jobs) > 0 {
				return fmt.Errorf("n2 still has job %d", jobs[0].JobID)
			}
			return nil
		})
		must(t, n1.ctlErrorRoot(t, "cancel", job))
		c.jobless(t)
	})
}
