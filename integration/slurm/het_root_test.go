package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
)

// twoComponents begins a heterogeneous job whose first component has the last node.
const twoComponents = "salloc -Q -w n3 -n2 : -w n[1-2] -N2 -n3 "

// components runs an MPI program whose ranks are of two components.
func (l mpiLibrary) components(t *testing.T, c *cluster.Cluster, release string) {
	script := fmt.Sprintf("export LD_LIBRARY_PATH=$DIR/%[1]s/lib %[2]s; %[3]s srun --het-group=0,1 --mpi=%[4]s $DIR/%[1]s/world hello ring allreduce alltoall",
		l.name, l.env, twoComponents, l.mpi)
	cmd := c.Command(t.Context(), "alice", "timeout", "-k5", mpiPatience, "sh", "-c", script)
	out, err := cmd.CombinedOutput()
	// srun's PMIx plugin may join its abort agent's thread once for each component, and then waits
	// for ever when all is over (22.05: pmixp_abort_agent_stop): no step daemon is left by then.
	if code := cmd.ProcessState.ExitCode(); l.mpi == "pmix" && release == "22.05" && (code == 124 || code == 137) { // timeout(1)
		t.Logf("srun did not end by itself: %v", err)
		for _, n := range c.Nodes() {
			gone(t, c, n)
		}
	} else if err != nil {
		t.Errorf("%v", err)
	}
	checkWorld(t, string(out), 5)
	for rank, node := range []string{"n3", "n3", "n1", "n1", "n2"} {
		if want := fmt.Sprintf("hello %d of 5 on %s\n", rank, node); !strings.Contains(string(out), want) {
			t.Errorf("want %q, got:\n%s", want, out)
		}
	}
}

// componentsLost kills the step daemon of a component, and then, in another step, one and its keeper: the
// other components end, and nothing is left when another step has swept.
func componentsLost(t *testing.T, c *cluster.Cluster) {
	out := c.Path("work/alice/out")
	for _, keeperToo := range []bool{false, true} {
		_ = os.Remove(out)
		cmd := c.Command(t.Context(), "alice", "timeout", "-k5", "60", "sh", "-c", twoComponents+"srun -K0 --het-group=0,1 --mpi=pmi2 $DIR/fences 0 >out 2>&1")
		must(t, cmd.Start())
		eventually(t, time.Minute, func() error {
			if text, _ := os.ReadFile(out); !bytes.Contains(text, []byte("fencing")) {
				return errors.New("the ranks do not fence")
			}
			return nil
		})
		all := ofSteps(nodeSpace(t, c, "n2"))
		if !keeperToo {
			kill(t, named(all, "slurmstepd"), unix.SIGKILL)
			_ = cmd.Wait() // its exit code is looked at
			text, err := os.ReadFile(out)
			must(t, err)
			if code := cmd.ProcessState.ExitCode(); code == 0 || code == 124 || !bytes.Contains(text, []byte(`lost node "n2"`)) {
				t.Errorf("exit code %d\n%s", code, text)
			}
		} else {
			if !killBoth(t, all) {
				t.Errorf("no step daemon and keeper among %v", all)
			}
			gone(t, c, "n1")
			gone(t, c, "n3")
			if text, err := c.Command(t.Context(), "alice", "timeout", "60", "srun", "-w", "n2", "true").CombinedOutput(); err != nil {
				t.Errorf("the next step: %v: %s", err, text)
			}
			must(t, c.Command(t.Context(), "root", "scancel", "-u", "alice").Run())
			_ = cmd.Wait() // it was cancelled
		}
		for _, n := range c.Nodes() {
			gone(t, c, n)
		}
	}
}
