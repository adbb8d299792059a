package slurm

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// TestRootSlurmPMIxFolder: the folder of a step's PMIx server is a bounded file system of its own,
// and is gone after the step, after kill -9 of its daemon, and with a later step where the keeper
// was killed as well.
func TestRootSlurmPMIxFolder(t *testing.T) {
	testkit.RequireRoot(t)
	t.Parallel()
	s := startShell(t, cluster.Site{Release: "22.05"})
	space := space(t, s.Cluster)
	const fill = `head -c 1G /dev/zero >$PMIX_SERVER_TMPDIR/x 2>/dev/null; stat -f -c %T $PMIX_SERVER_TMPDIR; n=$(stat -c %s $PMIX_SERVER_TMPDIR/x); [ $n -gt 100000000 ] && [ $n -lt 150000000 ] && echo bounded`
	if out := s.run("alice", "srun --mpi=pmix sh -c '"+fill+"'"); !strings.Contains(out, "tmpfs\nbounded\n") {
		t.Errorf("a task sees %q", out)
	}
	s.run("root", "till '! grep stepd-pmix /proc/mounts'")
	for i, withKeeper := range []bool{false, true} {
		s.run("alice", "rm -f up; (srun --mpi=pmix sh -c 'echo up >up; exec sleep 1000' >/dev/null 2>&1 </dev/null) >/dev/null 2>&1 & till test -s up")
		if out := s.run("root", "grep -c stepd-pmix /proc/mounts"); out != "1\n" {
			t.Fatalf("want one mount, got %q", out)
		}
		all := processes(space, cluster.FirstJob+1+i)
		if withKeeper && !killBoth(t, all) || !withKeeper && !kill(t, named(all, "slurmstepd"), unix.SIGKILL) {
			t.Fatalf("no daemons among %v", all)
		}
		if withKeeper {
			s.run("alice", "srun true") // it sweeps
		}
		s.run("root", "till '! grep stepd-pmix /proc/mounts'")
		s.run("root", "till '! ls $DIR/spool/stepd/pmix | grep .'")
		s.run("root", "scancel -u alice; till '! squeue -h | grep .'")
	}
}
