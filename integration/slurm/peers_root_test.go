package slurm

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
)

// startPeers starts three nodes with the MPI programs. standIn says that srun has no mpi/pmix of
// its own. conf is stepd.conf.
func startPeers(t *testing.T, conf string) (c *cluster.Cluster, standIn bool) {
	t.Helper()
	release := cmp.Or(os.Getenv("RELEASE"), cluster.Releases()[0])
	site := cluster.Site{Release: release, Nodes: 3, Files: map[string]string{"stepd.conf": conf}}
	standIn = addPMIx(t, &site)
	c = startSite(t, site)
	must(t, placePrograms(c, release))
	return c, standIn
}

const pluginDir = "/usr/lib/x86_64-linux-gnu/slurm-wlm"

// addPMIx gives srun of a release that was built without mpi/pmix a plugin that stands for it, and
// reports whether it did: srun itself refuses --mpi=pmix else.
func addPMIx(t *testing.T, site *cluster.Site) bool {
	t.Helper()
	root, err := cluster.Image(t.Context(), cache(), site.Release)
	must(t, err)
	if has, err := filepath.Glob(root + pluginDir + "/mpi_pmix*.so"); err != nil || len(has) > 0 {
		return false
	}
	out, err := exec.Command("dpkg-query", "--admindir="+root+"/var/lib/dpkg", "-W", "-f", "${Version}", "slurmd").Output()
	must(t, err)
	var major, minor, micro int
	if _, err := fmt.Sscanf(string(out), "%d.%d.%d", &major, &minor, &micro); err != nil {
		t.Fatalf("%q: %v", out, err)
	}
	file := filepath.Join(t.TempDir(), "mpi_pmix.so")
	cc := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", fmt.Sprintf("-DVERSION=%d", major<<16|minor<<8|micro), "-o", file, "testdata/mpi/srunpmix.c")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	plugin, err := os.ReadFile(file)
	must(t, err)
	site.Files["mpi_pmix.so"] = string(plugin)
	site.Conf += "PluginDir=" + pluginDir + ":DIR/\n"
	return true
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
	c, standIn := startPeers(t, "")
	for _, program := range []string{"pmi2", "pmix"} {
		for _, size := range []struct{ nodes, ranks int }{{2, 2}, {3, 6}, {3, 64}} {
			out, code := runPeers(t, c, fmt.Sprintf("srun -Q -N%d -n%d -O --mpi=%s $DIR/%s", size.nodes, size.ranks, program, program))
			if n := strings.Count(out, fmt.Sprintf("of %d ok\n", size.ranks)); n != size.ranks || code != 0 {
				t.Errorf("%s: %d ranks on %d nodes: exit code %d\n%s", program, size.ranks, size.nodes, code, out)
			}
		}
	}
	groups(t, c, "", 1)
	groups(t, c, "2", 2)
	events(t, c)
	// The abort's code is srun's, and ends all nodes. Srun's own plugin takes the code.
	if out, code := runPeers(t, c, "srun -Q -N3 -n6 --mpi=pmix $DIR/pmix 7"); code != 7 && (!standIn || code == 0 || code == 124) {
		t.Errorf("an abort: exit code %d\n%s", code, out)
	}
	if out, code := runPeers(t, c, "srun -Q -N3 -n6 --mpi=pmi2 $DIR/pmi2 enough"); code == 0 || strings.Contains(out, "lost node") {
		t.Errorf("an abort: exit code %d\n%s", code, out)
	}
	for _, node := range c.Nodes() {
		gone(t, c, node)
	}
}

// closePorts is a firewall of the first node, whose step daemon is the tree's root: what goes to the
// second node's ports is refused, and what goes to the third's is lost.
const closePorts = `set -e
ip rule add to 10.77.0.12 ipproto 6 dport 60001-60009 unreachable
ip link add hole type veth peer name bottom
ip link set hole arp off up
ip link set bottom up
ip route add default dev hole table 77
ip rule add to 10.77.0.13 ipproto 6 dport 60001-60009 table 77`

// TestRootPeersClosed: where a firewall closes the ports, MPI goes by the slurmds, and the log says so.
func TestRootPeersClosed(t *testing.T) {
	t.Parallel()
	c, _ := startPeers(t, "PeerPorts=60001-60009\n")
	if out, err := c.On(t.Context(), "n1", "root", "sh", "-c", closePorts).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, program := range []string{"pmi2", "pmix"} {
		out, code := runPeers(t, c, fmt.Sprintf("srun -Q -N3 -n6 -O --mpi=%s $DIR/%s", program, program))
		if n := strings.Count(out, "of 6 ok\n"); n != 6 || code != 0 {
			t.Errorf("%s: exit code %d\n%s", program, code, out)
		}
	}
	log, err := os.ReadFile(c.Path("slurmd.n1.log"))
	must(t, err)
	for _, node := range []string{"n2", "n3"} {
		if said := regexp.MustCompile(`cannot connect to node `+node+`: .*goes by slurmd there, which is slower \(PeerPorts`).FindAll(log, -1); len(said) != 2 {
			t.Errorf("the log of n1 has %d lines of the ports of %s, want one a step", len(said), node)
		}
	}
	for _, node := range c.Nodes() {
		gone(t, c, node)
	}
}

// groups has six ranks on three nodes make PMIx groups, so many at a time: each has one number.
func groups(t *testing.T, c *cluster.Cluster, arg string, parts int) {
	t.Helper()
	out, code := runPeers(t, c, "srun -Q -N3 -n6 --mpi=pmix $DIR/pmixrank group "+arg)
	numbers := map[string]bool{}
	for rank := range 6 {
		made := regexp.MustCompile(fmt.Sprintf(`(?m)^group 0 context ([0-9]+) at %d$`, rank)).FindStringSubmatch(out)
		if made == nil || !strings.Contains(out, fmt.Sprintf("gone 0 at %d\n", rank)) {
			t.Fatalf("%d groups: rank %d is in none: exit code %d\n%s", parts, rank, code, out)
		}
		numbers[made[1]] = true
	}
	if len(numbers) != parts || numbers["0"] || code != 0 {
		t.Errorf("%d groups: numbers %v, exit code %d\n%s", parts, numbers, code, out)
	}
}

// events has rank 0 tell an event, which ranks on three nodes wait for.
func events(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	out, code := runPeers(t, c, "srun -Q -N3 -n6 --mpi=pmix $DIR/pmixrank tell -2200")
	for rank := 1; rank < 6; rank++ {
		heard := regexp.MustCompile(fmt.Sprintf(`(?m)^event -2200 of slurm\.pmix\.[0-9.]+:0 at %d text hello number 2\.5$`, rank))
		if len(heard.FindAllString(out, -1)) != 1 {
			t.Errorf("rank %d has not heard the event once", rank)
		}
	}
	if code != 0 || t.Failed() {
		t.Errorf("events: exit code %d\n%s", code, out)
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

// TestRootPeersEarly kills the step daemon of a node before the one next to it in the tree has begun:
// that one has no link to it, and learns of its end all the same.
func TestRootPeersEarly(t *testing.T) {
	t.Parallel()
	c, _ := startPeers(t, "")
	slurmd := func(signal string) {
		if out, err := c.Command(t.Context(), "root", "sh", "-c", "kill -"+signal+" $(cat $DIR/slurmd.n1.pid)").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	slurmd("STOP")
	cmd := c.Command(t.Context(), "alice", "timeout", "150", "sh", "-c", "exec srun -Q -K0 -N3 -n6 --mpi=pmi2 $DIR/fences 0 >out 2>&1")
	must(t, cmd.Start())
	space := nodeSpace(t, c, "n2")
	var daemon process
	eventually(t, time.Minute, func() error {
		if daemon = named(ofSteps(space), "slurmstepd"); daemon.pid == 0 || named(ofSteps(space), "stepkeeper").pid == 0 {
			return errors.New("no step daemon with a keeper on n2")
		}
		return nil
	})
	kill(t, daemon, unix.SIGKILL)
	time.Sleep(time.Second) // its keeper tells n1 meanwhile
	slurmd("CONT")
	_ = cmd.Wait() // its exit code is looked at
	out, err := os.ReadFile(c.Path("work/alice/out"))
	must(t, err)
	if code := cmd.ProcessState.ExitCode(); code == 0 || code == 124 || !bytes.Contains(out, []byte("n2")) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	for _, n := range c.Nodes() {
		gone(t, c, n)
	}
}

// TestRootPeersLost kills the step daemon of a node, or cuts the node off, at random moments of a
// step whose ranks fence: srun names the node and fails, and nothing is left. POINTS= are how
// often.
func TestRootPeersLost(t *testing.T) {
	t.Parallel()
	c, _ := startPeers(t, "")
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
			for _, n := range c.Nodes() {
				if n != node {
					gone(t, c, n) // they wait for its word
				}
			}
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

// TestRootPeersLostExplained: of a step over three nodes of which one has lost its step daemon, explain
// says on each of them which node that is.
func TestRootPeersLostExplained(t *testing.T) {
	t.Parallel()
	c, _ := startPeers(t, "")
	node := c.Nodes()[1]
	cmd := c.Command(t.Context(), "alice", "timeout", "150", "sh", "-c", "exec srun -Q -N3 -n6 --mpi=pmi2 $DIR/fences 0 >out 2>&1")
	must(t, cmd.Start())
	var id string
	eventually(t, time.Minute, func() error {
		if text, _ := os.ReadFile(c.Path("work/alice/out")); !strings.Contains(string(text), "fencing") {
			return errors.New("the ranks do not fence")
		}
		out, err := c.Command(t.Context(), "alice", "squeue", "-h", "-o", "%A").Output()
		id = strings.TrimSpace(string(out)) + ".0"
		for _, n := range c.Nodes() {
			if _, missing := os.Stat(c.Spool(n) + "/stepd/" + id + ".json"); missing != nil {
				err = missing // it is written when the step has run for a while
			}
		}
		return err
	})
	kill(t, named(ofSteps(nodeSpace(t, c, node)), "slurmstepd"), unix.SIGKILL)
	if err := cmd.Wait(); err == nil {
		t.Error("srun ended well")
	}
	for _, n := range c.Nodes() {
		gone(t, c, n)
		want := "node: lost node \"" + node + "\""
		if n == node {
			want = "node: " + node + ": slurmstepd has died"
		}
		out, err := exec.Command(filepath.Join(programs(t), "stepctl"), "explain", "--spool", c.Spool(n), id).CombinedOutput()
		t.Logf("on %s: %v\n%s", n, err, out)
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("on %s explain does not say %q: %v\n%s", n, want, err, out)
		}
	}
}
