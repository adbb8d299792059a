package slurm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// mpiLibrary is an MPI library of this machine, which the cluster gets a copy of.
type mpiLibrary struct {
	name, cc, mpi string
	plugins       string // a folder of files that it loads by their names, beside its libraries; "" for none
	// spawns reports whether the library can spawn and connect at all: docs/mpi.md.
	spawns bool
	// env are variables of its programs, and many further ones where they have 64 ranks, which
	// shorten what the ranks compute. only is the release that can run it, "" for all.
	env, many, only string
	// built says that `make mpi-pmi2` makes it.
	built bool
}

const mpichBuilt = "/var/cache/stepd-mpich/current/"

var mpiLibraries = []mpiLibrary{
	{name: "mpich", cc: "mpicc.mpich", mpi: "pmi2", plugins: "/usr/lib/x86_64-linux-gnu/ucx", many: "LD_PRELOAD=$DIR/yield.so"},
	// It loads the image's libpmix, as pmixhost does. More ranks than CPUs wait busily. Without
	// many most of the time of 64 ranks is MPI_Init's.
	{name: "openmpi", cc: "mpicc.openmpi", mpi: "pmix", plugins: "/usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3", only: "22.05",
		env:  "OMPI_MCA_mca_base_component_path=$DIR/openmpi/lib/openmpi3 OMPI_MCA_mpi_yield_when_idle=1",
		many: "OMPI_MCA_pml=ob1 OMPI_MCA_osc=^ucx OMPI_MCA_btl=self,tcp"},
	{name: "mpich-sock-pmi1", cc: mpichBuilt + "pmi1/bin/mpicc", mpi: "pmi2", spawns: true, built: true},
	{name: "mpich-sock-pmi2", cc: mpichBuilt + "pmi2/bin/mpicc", mpi: "pmi2", spawns: true, built: true},
}

// place compiles the programs and copies the library into the cluster's folder. It reports false of
// one that is to be built and was not.
func (l mpiLibrary) place(t *testing.T, c *cluster.Cluster) bool {
	t.Helper()
	cc, err := exec.LookPath(l.cc)
	if err != nil && l.built {
		t.Logf("%s: not run, as make mpi-pmi2 has not built it", l.name)
		return false
	}
	must(t, err)
	dir := c.Path(l.name)
	must(t, os.MkdirAll(dir+"/lib", 0o755))
	for _, p := range []string{"world", "spawn", "names"} {
		out, err := exec.Command(cc, "-std=gnu11", "-O1", "-o", filepath.Join(dir, p), "../mpi/"+p+".c").CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", cc, p, err, out)
		}
	}
	copyLibraries(t, dir, filepath.Join(dir, "world"))
	if l.plugins == "" {
		return true
	}
	into := filepath.Join(dir, "lib", filepath.Base(l.plugins))
	if out, err := exec.Command("cp", "-rL", l.plugins, into).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files, err := filepath.Glob(into + "/*.so")
	must(t, err)
	copyLibraries(t, dir, files...)
	return true
}

// copyLibraries copies what files are linked with, but for the C library and libpmix, which are the image's.
func copyLibraries(t *testing.T, dir string, files ...string) {
	t.Helper()
	out, err := exec.Command("ldd", files...).Output()
	must(t, err)
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) < 3 || words[1] != "=>" || !filepath.IsAbs(words[2]) {
			continue
		}
		switch name := filepath.Base(words[2]); name {
		case "libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2", "libpmix.so.2":
		default:
			if out, err := exec.Command("cp", "-L", words[2], filepath.Join(dir, "lib", name)).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
}

// run runs a program with so many ranks on so many nodes, and returns what it prints.
func (l mpiLibrary) run(t *testing.T, c *cluster.Cluster, nodes, ranks int, program string) string {
	t.Helper()
	env := l.env
	if ranks == manyRanks {
		env += " " + l.many
	}
	// srun gives a spawned step no more tasks than the job has CPUs, and programs spawn three.
	script := fmt.Sprintf("export SLURM_OVERLAP=1 LD_LIBRARY_PATH=$DIR/%[1]s/lib %[6]s; salloc -Q -N%[2]d -n%[7]d srun -N%[2]d -n%[3]d --mpi=%[5]s $DIR/%[1]s/%[4]s",
		l.name, nodes, ranks, program, l.mpi, env, max(ranks, 3))
	out, err := c.Command(t.Context(), "alice", "timeout", "-k5", mpiPatience, "sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	return string(out)
}

// manyRanks are many more than a machine's CPUs.
const manyRanks = 64

// mpiPatience bounds a program, in seconds: many ranks that wait busily for two CPUs take long.
const mpiPatience = "240"

// TestRootSlurmMPI: MPI programs on one to three nodes. Each checks what it gets.
func TestRootSlurmMPI(t *testing.T) {
	testkit.RequireRoot(t)
	onReleases(t, func(t *testing.T, release string) {
		c := startSpawnCluster(t, release)
		compile := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "testdata/mpi/yield.c", "-o", c.Path("yield.so"))
		if out, err := compile.CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
		must(t, placePrograms(c, release))
		t.Run("components lost", func(t *testing.T) { componentsLost(t, c) })
		for _, l := range mpiLibraries {
			if l.only != "" && l.only != release || !l.place(t, c) {
				continue
			}
			if !l.built || matrix() {
				t.Run(l.name+"/components", func(t *testing.T) { l.components(t, c, release) })
			}
			for _, ranks := range []int{2, 8, manyRanks} {
				for nodes := 1; nodes <= min(3, ranks); nodes++ {
					if ranks == manyRanks && nodes < 3 && l.built && !matrix() {
						continue // Debian's are run on any machine
					}
					t.Run(fmt.Sprintf("%s/%dx%d", l.name, nodes, ranks), func(t *testing.T) { l.check(t, c, nodes, ranks) })
				}
			}
		}
	})
}

// checkWorld looks at what the program world has printed.
func checkWorld(t *testing.T, out string, ranks int) {
	t.Helper()
	for rank := range ranks {
		if want := fmt.Sprintf("hello %d of %d on n", rank, ranks); strings.Count(out, want) != 1 {
			t.Errorf("want %q once, got:\n%s", want, out)
		}
	}
	for _, part := range []string{"ring", "allreduce", "alltoall"} {
		if want := fmt.Sprintf("%s ok %d\n", part, ranks); strings.Count(out, want) != 1 {
			t.Errorf("want %q once, got:\n%s", want, out)
		}
	}
}

// check runs the programs that the library has.
func (l mpiLibrary) check(t *testing.T, c *cluster.Cluster, nodes, ranks int) {
	t.Helper()
	out := l.run(t, c, nodes, ranks, "world hello ring allreduce alltoall")
	checkWorld(t, out, ranks)
	used := 0
	for _, node := range c.Nodes() {
		if strings.Contains(out, " on "+node+"\n") {
			used++
		}
	}
	if used != nodes {
		t.Errorf("it has run on %d nodes, want %d:\n%s", used, nodes, out)
	}
	if !l.spawns {
		return
	}
	// Before these srun may say that it takes fewer nodes.
	if out := l.run(t, c, nodes, ranks, "spawn"); !strings.HasSuffix(out, fmt.Sprintf("spawn ok %[1]d+2\nspawn_multiple ok %[1]d+2+1\n", ranks)) {
		t.Errorf("spawn:\n%s", out)
	}
	low, high := ranks/2, ranks-ranks/2
	out = l.run(t, c, nodes, ranks, "names groups name")
	for _, want := range []string{fmt.Sprintf("server ok %d+%d\n", low, high), fmt.Sprintf("client ok %d+%d\n", high, low)} {
		if !strings.Contains(out, want) {
			t.Errorf("names: want %q, got:\n%s", want, out)
		}
	}
}
