package integration

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// mpicc compiles an MPI program with Debian's MPICH (PMI-1).
func mpicc(t testing.TB, n *node, name string) string {
	t.Helper()
	if _, err := exec.LookPath("mpicc.mpich"); err != nil {
		missing(t, "no mpicc.mpich: apt-get install mpich libmpich-dev")
	}
	program := n.path(name)
	out, err := exec.Command("mpicc.mpich", "-Wall", "testdata/mpi/"+name+".c", "-o", program).CombinedOutput()
	if err != nil {
		t.Fatalf("mpicc.mpich %s: %v\n%s", name, err, out)
	}
	return program
}

// TestRootMPIDefault: which plugin serves a step, and none. TestRootMPIWorld has
// the programs.
func TestRootMPIDefault(t *testing.T) {
	n := startNode(t, site{})
	program := mpicc(t, n, "allreduce")
	t.Run("MpiDefault", func(t *testing.T) {
		other := startNode(t, site{Slurm: "MpiDefault=pmi2\n"})
		if r := other.ctl(t, "run", "-n", "2", mpicc(t, other, "allreduce")); r.code != 0 || r.out != "ranks 2 sum 1 pi 3.1416\n" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("names of Slurm's", func(t *testing.T) {
		defaults := startNode(t, site{Slurm: "MpiDefault=mpi/pmix_v4\n"})
		const script = `echo "<$SLURM_MPI_TYPE>"`
		for _, c := range []struct {
			n        *node
			mpi, env string
			want     string
		}{
			{n, "--mpi=pmix_v4", "", "<pmix>\n"},
			{n, "--mpi=none", "", "<>\n"},
			{n, "--mpi=openmpi", "", "<>\n"},
			{n, "--mpi=mpi/pmi2", "", "<pmi2>\n"},
			{n, "-Q", "SLURM_MPI_TYPE=pmix_v3", "<pmix>\n"},
			{defaults, "-Q", "", "<pmix>\n"},
			{defaults, "--mpi=openmpi", "", "<>\n"},
		} {
			r := c.n.do(t, call{args: []string{"run", c.mpi, "sh", "-c", script}, env: []string{c.env}})
			if r.code != 0 || r.out != c.want {
				t.Errorf("%s %s: want %q, got %v", c.mpi, c.env, c.want, r)
			}
		}
		for _, no := range []string{"pmix4", "PMIX_v4", "list,pmix", "mpi/"} {
			if r := n.ctl(t, "run", "--mpi="+no, "true"); r.code != 1 || !strings.Contains(r.err, "there are none, pmi2, pmix") {
				t.Errorf("--mpi=%s: %v", no, r)
			}
		}
	})
	t.Run("none", func(t *testing.T) {
		// Without PMI each task is a world of its own.
		r := n.ctl(t, "run", "-n", "2", "--mpi=none", program)
		if r.code != 0 || r.out != strings.Repeat("ranks 1 sum 0 pi 3.1416\n", 2) {
			t.Errorf("got %v", r)
		}
	})
}

// TestRootMPIAbort: MPI_Abort ends the step with its code, and no rank
// waits for ranks that will never come.
func TestRootMPIAbort(t *testing.T) {
	n := startNode(t, site{})
	r := n.ctl(t, "run", "-n", "4", "--mpi=pmi2", mpicc(t, n, "abort"))
	if r.code != 7 {
		t.Errorf("want exit code 7, got %v", r)
	}
	n.checkClean(t)
}

// TestRootPMI2Client: a client of Slurm's libpmi2 puts, fences, gets, and
// waits for a node attribute.
func TestRootPMI2Client(t *testing.T) {
	n := startNode(t, site{})
	if out, err := exec.Command("cc", "-Wall", "testdata/mpi/pmi2client.c", "-o", n.path("pmi2client"), "-lpmi2").CombinedOutput(); err != nil {
		missing(t, fmt.Sprintf("no libpmi2: apt-get install libpmi2-0-dev (%s)", tail(string(out), 1)))
	}
	for _, ranks := range []int{1, 2, 8} {
		r := n.ctl(t, "run", "-n", fmt.Sprint(ranks), "--mpi=pmi2", n.path("pmi2client"))
		if r.code != 0 || r.err != "" {
			t.Errorf("%d ranks: %v", ranks, r)
		}
		for rank := range ranks {
			contains(t, "stdout", r.out, fmt.Sprintf("rank %d of %d ok\n", rank, ranks))
		}
	}
}

// TestRootPMIGarbage: a task that speaks nonsense to its PMI server ends as a
// task ends; the node goes on.
func TestRootPMIGarbage(t *testing.T) {
	n := startNode(t, site{})
	for _, c := range []struct{ name, script string }{
		{"no protocol", `printf 'garbage\n\n\0\377' >&$PMI_FD; exit 4`},
		{"a frame length that lies", `printf 'cmd=init pmi_version=2 pmi_subversion=0\n' >&$PMI_FD; printf '999999cmd=fullinit;' >&$PMI_FD; exit 4`},
		{"a frame length that is none", `printf 'cmd=init pmi_version=2 pmi_subversion=0\n' >&$PMI_FD; printf 'abcdefcmd=x;' >&$PMI_FD; exit 4`},
		{"an endless line", `head -c 3000000 /dev/zero | tr '\0' x >&$PMI_FD 2>/dev/null; exit 4`},
		{"a barrier and an end", `printf 'cmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\n' >&$PMI_FD; exit 4`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := n.ctl(t, "run", "-n", "2", "--mpi=pmi2", "bash", "-c", "trap '' PIPE; "+c.script)
			if r.code == 0 {
				t.Errorf("want the task's failure to be told, got %v", r)
			}
			n.checkClean(t)
		})
	}
	n.serves(t)
}

// TestRootMPIList: the list of plugins, and what is open in a task under one.
func TestRootMPIList(t *testing.T) {
	n := startNode(t, site{})
	r := n.ctl(t, "run", "--mpi=list")
	contains(t, "--mpi=list", r.out+r.err, "none", "pmi2")
	if r.code != 0 {
		t.Errorf("--mpi=list: %v", r)
	}
	r = n.ctl(t, "run", "--mpi=pmi2", "sh", "-c", `ls /proc/self/fd | tr '\n' ' '; echo PMI_FD=$PMI_FD PMI_RANK=$PMI_RANK PMI_SIZE=$PMI_SIZE`)
	var fd int
	_, rest, _ := strings.Cut(r.out, "PMI_FD=")
	if _, err := fmt.Sscan(rest, &fd); err != nil || fd < 3 {
		t.Fatalf("PMI_FD: %v", r)
	}
	// 0, 1, 2, PMI_FD and the one that ls itself has opened.
	if fields := strings.Fields(r.out[:strings.Index(r.out, "PMI_FD=")]); len(fields) != 5 {
		t.Errorf("descriptors %q, want 0, 1, 2, %d and ls's own", fields, fd)
	}
	contains(t, "environment", r.out, "PMI_RANK=0 PMI_SIZE=1")
}
