package slurm

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// TestRootSlurmKillsWithoutFirstThread: a process that ignores SIGTERM and whose first thread has
// ended by pthread_exit ends with scancel, and by the keeper when the step daemon was killed.
func TestRootSlurmKillsWithoutFirstThread(t *testing.T) {
	testkit.RequireRoot(t)
	t.Parallel()
	s := startShell(t, cluster.Site{Release: "22.05", Conf: "KillWait=1\n"})
	out, err := exec.Command("gcc", "-Wall", "-Wextra", "-Werror", "-static", "-pthread", "-o", s.Path("leaderless"), "../testdata/tasks/leaderless.c").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	space := space(t, s.Cluster)
	for i, end := range []func(){
		func() { s.run("alice", "scancel -u alice") },
		func() {
			if !kill(t, named(processes(space, cluster.FirstJob+1), "slurmstepd"), unix.SIGKILL) {
				t.Fatal("no step daemon")
			}
		},
	} {
		s.run("alice", "rm -f out code; (srun $DIR/leaderless >out 2>&1 </dev/null; echo $? > code) >/dev/null 2>&1 & till grep ready out")
		end()
		s.run("alice", "till test -s code") // srun may lose patience (KillWait + 2 s) and exit with 0
		// The job's cgroups are gone: no process is in them.
		eventually(t, time.Minute, func() error { return left(s.Cluster, space, cluster.FirstJob+i) })
		s.run("root", "till '! squeue -h | grep .'; till '[ $(sinfo -h -o %T) = idle ]'")
	}
}
