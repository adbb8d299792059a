package slurm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// startPeers starts three nodes with the MPI programs.
func startPeers(t *testing.T) *cluster.Cluster {
	t.Helper()
	testkit.RequireRoot(t)
	release := os.Getenv("RELEASE")
	if release == "" {
		release = "22.05"
	}
	c, err := cluster.Start(t.Context(), cluster.Site{
		Release: release, Cache: cache(), Programs: programs(t), StepDaemon: ours, Users: []string{"alice"}, Nodes: 3,
	})
	must(t, err)
	t.Cleanup(func() {
		keep(t, c, "ours")
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	must(t, placePrograms(c, release))
	return c
}

// run is a command of alice's, with what it prints on both streams and its exit code.
func runPeers(t *testing.T, c *cluster.Cluster, script string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := c.Command(ctx, "alice", "timeout", "150", "sh", "-c", script)
	text, err := cmd.CombinedOutput()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		t.Fatal(err)
	}
	return string(text), cmd.ProcessState.ExitCode()
}

// TestRootPeers runs MPI's start-up on 2 and 3 nodes.
func TestRootPeers(t *testing.T) {
	t.Parallel()
	c := startPeers(t)
	for _, program := range []string{"pmi2", "pmix"} {
		for _, size := range []struct{ nodes, ranks int }{{2, 2}, {3, 6}, {3, 64}} {
			out, code := runPeers(t, c, fmt.Sprintf("srun -Q -N%d -n%d -O --mpi=%s $DIR/%s", size.nodes, size.ranks, program, program))
			if n := strings.Count(out, fmt.Sprintf("of %d ok\n", size.ranks)); n != size.ranks || code != 0 {
				t.Errorf("%s: %d ranks on %d nodes: exit code %d\n%s", program, size.ranks, size.nodes, code, out)
			}
		}
	}
	// The abort's code is srun's, and ends all nodes.
	if out, code := runPeers(t, c, "srun -Q -N3 -n6 --mpi=pmix $DIR/pmix 7"); code != 7 {
		t.Errorf("an abort: exit code %d\n%s", code, out)
	}
	if out, code := runPeers(t, c, "srun -Q -N3 -n6 --mpi=pmi2 $DIR/pmi2 enough"); code == 0 || strings.Contains(out, "lost node") {
		t.Errorf("an abort: exit code %d\n%s", code, out)
	}
	for _, node := range c.Nodes() {
		gone(t, c, node)
	}
}

// ofSteps are the processes of all steps on a node.
func ofSteps(space string) []process {
	return search(space, func(title string, _ []byte) bool {
		return strings.HasPrefix(title, "slurmstepd: [") || strings.HasPrefix(title, "stepkeeper: [") || strings.Contains(title, "/fences 0")
	})
}

// gone waits until a node has no step daemon and no mailbox.
func gone(t *testing.T, c *cluster.Cluster, node string) {
	t.Helper()
	space := nodeSpace(t, c, node)
	eventually(t, time.Minute, func() error {
		for _, p := range ofSteps(space) {
			return fmt.Errorf("process %d %q is left on %s", p.pid, p.title, node)
		}
		files, err := os.ReadDir(c.Spool(node) + "/stepd")
		for _, f := range files {
			if strings.HasPrefix(f.Name(), "peers.") {
				return fmt.Errorf("file %q is left on %s", f.Name(), node)
			}
		}
		return err
	})
}

// TestRootPeersLost kills the step daemon of a node, or cuts the node off, at random moments of a
// step whose ranks fence: srun names the node and fails, and nothing is left. POINTS= are how
// often.
func TestRootPeersLost(t *testing.T) {
	t.Parallel()
	c := startPeers(t)
	points := 2
	if n, err := strconv.Atoi(os.Getenv("POINTS")); err == nil {
		points = n
	}
	seed := uint64(time.Now().UnixNano())
	if n, err := strconv.ParseUint(os.Getenv("SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for point := range points {
		node := c.Nodes()[random.IntN(3)]
		after := time.Duration(random.IntN(400)) * time.Millisecond
		cut := point%2 == 1
		what := fmt.Sprintf("point %d: %s, cut off %v, after %v", point, node, cut, after)
		cmd := c.Command(t.Context(), "alice", "timeout", "150", "sh", "-c", "exec srun -Q -K0 -N3 -n6 --mpi=pmi2 $DIR/fences 0 >out 2>&1")
		said := func() string {
			text, _ := os.ReadFile(c.Path("work/alice/out"))
			return string(text)
		}
		_ = os.Remove(c.Path("work/alice/out"))
		must(t, cmd.Start())
		space := nodeSpace(t, c, node)
		var daemon process
		eventually(t, time.Minute, func() error {
			if daemon = named(ofSteps(space), "slurmstepd"); daemon.pid == 0 {
				return fmt.Errorf("no step daemon on %s", node)
			}
			if cut && !strings.Contains(said(), "fencing") { // a launch that is held up goes on afterwards
				return errors.New("the ranks do not fence")
			}
			return nil
		})
		time.Sleep(after) // any moment will do
		if cut {
			must(t, c.SetLink(t.Context(), node, false))
			time.Sleep(20 * time.Second) // longer than the others wait for its word
			must(t, c.SetLink(t.Context(), node, true))
		} else {
			kill(t, daemon, unix.SIGKILL)
		}
		_ = cmd.Wait() // its exit code is looked at
		if code := cmd.ProcessState.ExitCode(); code == 0 || code == 124 || !strings.Contains(said(), node) {
			t.Errorf("%s: exit code %d\n%s", what, code, said())
		}
		for _, n := range c.Nodes() {
			gone(t, c, n)
		}
		runPeers(t, c, "until [ $(sinfo -h -o %T | sort -u) = idle ]; do sleep 0.1; done")
	}
}
