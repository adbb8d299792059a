package slurm

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"stepd/integration/slurm/cluster"
)

// spawnCase is a command of a job on two nodes of four CPUs, and what it prints. The lines of
// children are sorted, and come first.
type spawnCase struct {
	name, script, want string
	root               bool // runs it
	nodes              int  // 0 is 2
}

// childLine is a child's line.
func childLine(rank, of, command int, word, dir string) string {
	return fmt.Sprintf("child %d of %d, command %d %q in %s: parent is here\n", rank, of, command, word, dir)
}

var spawnCases = []spawnCase{
	{name: "one command", script: `run one; echo rc=$?`, want: childLine(0, 2, 0, "first one", "/alice") + childLine(1, 2, 0, "first one", "/alice") + "spawn: ok\nrc=0\n"},
	{name: "two commands, and a directory of the first", script: `mkdir -p sub; run two wdir=$PWD/sub; echo rc=$?`, want: childLine(0, 3, 0, "first one", "/sub") + childLine(1, 3, 0, "first one", "/sub") + childLine(2, 3, 1, "it's 100%", "/alice") + "spawn: ok\nrc=0\n"},
	{name: "on another node, found by a path", script: `mkdir -p bin; cp $DIR/spawn bin/other; run one host=n2:2 path=$PWD/bin wdir=bin foo=bar; echo rc=$?`, want: childLine(0, 2, 0, "first one", "/bin") + childLine(1, 2, 0, "first one", "/bin") + "spawn: ok\nrc=0\n"},
	{name: "from two nodes, over two nodes", script: `SLURM_JOB_NUM_NODES=2 srun -N2 -n4 --mpi=pmi2 $DIR/spawn two; echo rc=$?`, want: childLine(0, 3, 0, "first one", "/alice") +
		childLine(1, 3, 0, "first one", "/alice") + childLine(2, 3, 1, "it's 100%", "/alice") + "spawn: ok\nrc=0\n"},
	{name: "a child over two nodes is cancelled", script: strings.Replace(linger, "run", "SLURM_JOB_NUM_NODES=2 run", 1) + `scancel $SLURM_JOB_ID.1; ended`, want: "no step\nended\n"},
	{name: "no node of the job", script: `run one host=n3; echo rc=$?`, want: "spawn: failed\nrc=0\n"},
	{name: "no such program", script: `run ./none 2>err; sed s/n2/n1/ err; echo rc=$?`, want: strings.Repeat("slurmstepd-n1: error: execve(): WD/./none: No such file or directory\n", 2) + "spawn: failed\n" +
		"srun: error: n1: tasks 0-1: Exited with exit code 2\nrc=0\n"},
	// The child's end is the parent's, and the other way round: both srun's have ended, long
	// before srun ends what its tasks have spawned, after a minute.
	{name: "the child is cancelled", script: linger + `scancel $SLURM_JOB_ID.1; ended`, want: "no step\nended\n"},
	{name: "the parent is cancelled", script: linger + `scancel $SLURM_JOB_ID.0; ended`, want: "no step\nended\n"},
	{name: "the child's step daemon is killed", root: true, script: linger + `pkill -9 -f "^slurmstepd: .$SLURM_JOB_ID.1."; ended`, want: "no step\nended\n"},
	{name: "the child on another node is cancelled", script: strings.Replace(linger, "linger", "linger host=n2", 1) + `scancel $SLURM_JOB_ID.1; ended`, want: "no step\nended\n"},
}

// linger starts two steps that live until they are ended.
const linger = `run linger >out 2>err & till grep -q ok out; `

// spawnHead is what the scripts use. ended prints that no step is left, and that srun has failed.
const spawnHead = `
till() { until "$@" 2>/dev/null; do sleep 0.05; done; }
none() { [ -z "$(squeue -h -s -j $SLURM_JOB_ID -o %i | grep -v -e extern -e batch)" ]; }
ended() { till none; echo no step; wait $! || echo ended; }
run() { srun -N1 -n2 --mpi=pmi2 $DIR/spawn "$@"; }
export SLURM_OVERLAP=1 SLURM_JOB_NUM_NODES=1 # of the spawned steps, which have srun's environment
rm -f out err # of another case
`

func startSpawnCluster(t *testing.T, release string) *cluster.Cluster {
	t.Helper()
	c := startSite(t, cluster.Site{
		Release: release, Nodes: 3,
		Files: map[string]string{"stepd.conf": "PMI2SpawnTimeout=0\n"},
		Conf:  "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=1,bf_interval=1\n", // het jobs are backfill's
	})
	compile := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "testdata/mpi/spawn.c", "-lpmi2", "-o", c.Path("spawn"))
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return c
}

// spawnPatience bounds a case, in seconds; it is far more than a case takes on a busy machine.
const spawnPatience = "60"

// run runs a case in a job of two nodes, and returns what it prints.
func (c spawnCase) run(t *testing.T, cl *cluster.Cluster) string {
	t.Helper()
	user := "alice"
	if c.root {
		user = "root"
	}
	cmd := cl.Command(t.Context(), user, "timeout", "-k5", spawnPatience, "salloc", "-Q", fmt.Sprintf("-N%d", cmp.Or(c.nodes, 2)), "--ntasks-per-node=4", "sh", "-c", spawnHead+c.script)
	out, err := cmd.CombinedOutput()
	if err != nil { // the scripts print srun's code, and end with 0
		t.Errorf("%v within %s s", err, spawnPatience)
	}
	return string(out)
}

// inOrder is what a case prints with the children's lines first, sorted, then what srun passes on,
// and the lines of srun that depend on what it reads first left out.
func inOrder(out, wd string) string {
	out = strings.ReplaceAll(out, wd, "WD")
	var children, passed, others []string
	for line := range strings.Lines(out) {
		switch {
		case strings.HasPrefix(line, "child "):
			children = append(children, line)
		case strings.HasPrefix(line, "slurmstepd-"):
			passed = append(passed, line)
		case !racyLines.MatchString(line):
			others = append(others, line)
		}
	}
	slices.Sort(children)
	return strings.Join(slices.Concat(children, passed, others), "")
}

// TestRootSlurmSpawn: MPI_Comm_spawn and published names by srun's PMI-2, without an MPI library.
func TestRootSlurmSpawn(t *testing.T) {
	onReleases(t, func(t *testing.T, release string) {
		cl := startSpawnCluster(t, release)
		for _, c := range spawnCases {
			t.Run(c.name, func(t *testing.T) {
				out := c.run(t, cl)
				if got := inOrder(out, cl.Path("work/alice")); got != c.want {
					t.Errorf("it has printed:\n%s\nwant:\n%s", out, c.want)
				}
			})
		}
		// Last, by its own limit. srun waits for CPUs that the parent has; it gets them, is told
		// that it is not wanted, and is waited for by the first srun for a minute.
		t.Run("no CPUs", func(t *testing.T) {
			must(t, os.WriteFile(cl.Path("stepd.conf"), []byte("PMI2SpawnTimeout=1\n"), 0o644))
			out := spawnCase{nodes: 1, script: `unset SLURM_OVERLAP; run one >out 2>err & till grep spawn out; kill -9 $!`}.run(t, cl)
			if out != "spawn: failed\n" {
				t.Errorf("it has printed:\n%s", out)
			}
		})
	})
}
