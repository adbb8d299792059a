package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// library is an MPI library, whose programs are compiled once for a test.
type library struct {
	name string
	cc   string
	need string // the packages that have cc
	mpi  string // --mpi
	env  []string
	// spawns reports whether the library can spawn and connect at all.
	spawns bool
	// busy says that a rank which waits takes all of a CPU, or gives it up only to ask
	// again, so that many of them on few CPUs take long.
	busy bool
}

// mpichCache is where make mpi-pmi2 puts the MPICH that it builds.
const mpichCache = "/var/cache/stepd-mpich/current"

// The libraries. docs/mpi.md says why Debian's MPICH neither spawns nor connects.
var (
	libMPICH     = library{name: "mpich", cc: "mpicc.mpich", need: "mpich libmpich-dev", mpi: "pmi2", busy: true}
	libMPICHPMI1 = library{name: "mpich-sock-pmi1", cc: mpichCache + "/pmi1/bin/mpicc", mpi: "pmi2", spawns: true}
	libOpenMPI   = library{
		name: "openmpi", cc: "mpicc.openmpi", need: "openmpi-bin libopenmpi-dev", mpi: "pmix", spawns: true, busy: true,
		env: []string{"OMPI_MCA_mpi_yield_when_idle=1"}, // more ranks than CPUs
	}
	libMPICHPMI2 = library{name: "mpich-sock-pmi2", cc: mpichCache + "/pmi2/bin/mpicc", mpi: "pmi2", spawns: true}
)

// build compiles programs of integration/mpi, and returns their folder.
func (l library) build(t testing.TB, n *node, programs ...string) string {
	t.Helper()
	if _, err := exec.LookPath(l.cc); err != nil {
		missing(t, fmt.Sprintf("no %s: apt-get install %s", l.cc, l.need))
	}
	dir := n.path(l.name)
	must(t, os.MkdirAll(dir, 0o755))
	for _, p := range programs {
		out, err := exec.Command(l.cc, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(dir, p), "mpi/"+p+".c").CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", l.cc, p, err, out)
		}
	}
	return dir
}

// run runs a program of dir with so many ranks.
func (l library) run(t testing.TB, n *node, ranks int, dir, program string, args ...string) result {
	t.Helper()
	return n.do(t, call{
		args: append([]string{"run", "-n", fmt.Sprint(ranks), "--mpi=" + l.mpi, filepath.Join(dir, program)}, args...),
		env:  l.env,
		// 64 ranks that wait busily on two CPUs that others want, too.
		limit: 3 * time.Minute,
	})
}

// checkWorld looks at what world has printed: a hello of each rank from its
// node, and the other parts' words.
func checkWorld(t testing.TB, r result, nodes []string) {
	t.Helper()
	if r.code != 0 || r.err != "" {
		t.Errorf("world: %v", r)
	}
	for rank, node := range nodes {
		if want := fmt.Sprintf("hello %d of %d on %s\n", rank, len(nodes), node); strings.Count(r.out, want) != 1 {
			t.Errorf("want %q once, got %v", want, r)
		}
	}
	for _, part := range worldParts[1:] {
		if want := fmt.Sprintf("%s ok %d\n", part, len(nodes)); strings.Count(r.out, want) != 1 {
			t.Errorf("want %q once, got %v", want, r)
		}
	}
	if got, want := strings.Count(r.out, "\n"), len(nodes)+len(worldParts)-1; got != want {
		t.Errorf("%d lines, want %d: %v", got, want, r)
	}
}

var worldParts = []string{"hello", "ring", "allreduce", "alltoall"}

// TestRootMPIWorld: hello, ring, allreduce and alltoall in one world of 1, 2, 8
// and 64 ranks. Each part checks what it has got.
func TestRootMPIWorld(t *testing.T) {
	n := startNode(t, site{})
	for _, l := range librariesHere(t) {
		dir := l.build(t, n, "world", "abort")
		for _, ranks := range []int{1, 2, 8, 64} {
			t.Run(fmt.Sprintf("%s/%d", l.name, ranks), func(t *testing.T) {
				nodes := make([]string, ranks)
				for i := range nodes {
					nodes[i] = "vm"
				}
				checkWorld(t, l.run(t, n, ranks, dir, "world", worldParts...), nodes)
			})
		}
		t.Run(l.name+"/abort", func(t *testing.T) {
			r := l.run(t, n, 3, dir, "abort")
			if r.code != 7 || r.out != "" {
				t.Errorf("want exit code 7 and no rank that comes through, got %v", r)
			}
		})
	}
}

// TestRootMPISpawn: MPI_Comm_spawn and _multiple, and names that are published
// and connected to within a world and between two steps of a job.
func TestRootMPISpawn(t *testing.T) {
	n := startNode(t, site{})
	for _, l := range librariesHere(t) {
		if !l.spawns {
			continue
		}
		dir := l.build(t, n, "spawn", "names")
		for _, ranks := range []int{1, 2, 8, 64} {
			t.Run(fmt.Sprintf("%s/spawn/%d", l.name, ranks), func(t *testing.T) {
				l.checkSpawn(t, n, ranks, dir)
			})
			if ranks == 1 {
				continue // two halves
			}
			t.Run(fmt.Sprintf("%s/names/%d", l.name, ranks), func(t *testing.T) {
				l.checkNames(t, n, ranks, dir)
			})
		}
		t.Run(l.name+"/steps", func(t *testing.T) {
			script := `$0 run -n 2 --mpi=$1 $2 server port & $0 run -n 1 --mpi=$1 $2 client port; code=$?; wait $! && exit $code`
			r := n.do(t, call{args: []string{"alloc", "-Q", "-n", "3", "sh", "-c", script, n.bin, l.mpi, filepath.Join(dir, "names")}, env: l.env})
			contains(t, "stdout", r.out, "server ok 2+1\n", "client ok 1+2\n")
			if r.code != 0 || r.err != "" {
				t.Errorf("got %v", r)
			}
		})
	}
}

func (l library) checkSpawn(t testing.TB, n *node, ranks int, dir string) {
	t.Helper()
	r := l.run(t, n, ranks, dir, "spawn")
	want := fmt.Sprintf("spawn ok %d+2\nspawn_multiple ok %d+2+1\n", ranks, ranks)
	if r.code != 0 || r.out != want || r.err != "" {
		t.Errorf("want %q, got %v", want, r)
	}
}

// checkNames: the halves of a world find each other by a name.
func (l library) checkNames(t testing.TB, n *node, ranks int, dir string) {
	t.Helper()
	r := l.run(t, n, ranks, dir, "names", "groups", "halves")
	for _, side := range []string{"server", "client"} {
		contains(t, "stdout", r.out, fmt.Sprintf("%s ok %d+%d\n", side, ranks/2, ranks/2))
	}
	if r.code != 0 || r.err != "" {
		t.Errorf("got %v", r)
	}
}

// librariesHere are those that the machine has; Debian's must be there.
func librariesHere(t testing.TB) []library {
	all := []library{libMPICH, libOpenMPI}
	for _, l := range []library{libMPICHPMI1, libMPICHPMI2} {
		if _, err := os.Stat(l.cc); err != nil {
			t.Logf("without %s, which make mpi-pmi2 builds; PMI-2 is tested by TestRootPMI2Client: %v", l.name, err)
			continue
		}
		all = append(all, l)
	}
	return all
}
