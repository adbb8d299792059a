package slurm

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// shell is a cluster under our step daemon, and a way to run scripts in it.
type shell struct {
	*cluster.Cluster
	t *testing.T
}

// startShell starts one.
func startShell(t *testing.T, site cluster.Site) shell {
	t.Helper()
	return shell{startSite(t, site), t}
}

// run runs a script, which must succeed, and returns what it has printed.
func (s shell) run(user, script string) string {
	s.t.Helper()
	out, err := s.Command(s.t.Context(), user, "timeout", "40", "sh", "-c", preamble+script).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return string(out)
}

// unkillableConf gives processes 2 s to end, and none of it to SIGTERM.
const unkillableConf = "KillWait=1\nUnkillableStepTimeout=2\nUnkillableStepProgram=DIR/unkillable\n"

// TestRootSlurmUnkillable: a task that hangs in the kernel drains the node, with the step and the
// process in the reason, and the site's program runs. The job completes, and its Epilog runs, when
// the task has ended at last.
func TestRootSlurmUnkillable(t *testing.T) {
	testkit.RequireRoot(t)
	for _, release := range cluster.Releases() {
		t.Run(release, func(t *testing.T) {
			t.Parallel()
			s := startShell(t, cluster.Site{
				Release: release, Conf: unkillableConf + "Epilog=DIR/epilog\n",
				Files: map[string]string{
					"unkillable": "#!/bin/sh\necho $(id -u) $SLURM_JOB_ID.$SLURM_STEP_ID >> DIR/told\n",
					"epilog":     "#!/bin/sh\n>> DIR/epilogs\n",
				},
			})
			out, err := exec.Command("gcc", "-static", "-o", s.Path("hangfs"), "../testdata/tasks/hangfs.c").CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			s.run("root", "mkdir /tmp/hang; cd /tmp; $DIR/hangfs hang >ready 2>&1 </dev/null & echo $! > $DIR/hangfs.pid; till grep ready /tmp/ready")
			s.run("alice", ">up; rm up; srun sh -c '>up; exec cat /tmp/hang/file' >out 2>&1 </dev/null & till test -e up; till 'ps -o wchan= -C cat | grep request_wait_answer'; scancel -u alice")
			s.run("root", "till 'sinfo -h -o %T | grep drain'")
			if got := s.run("root", "scontrol show node n1"); !regexp.MustCompile(`Reason=Kill task failed: step 1000001\.0: pid \d+ "cat" in state D `).MatchString(got) {
				t.Errorf("the node: %s", got)
			}
			if got := s.run("root", "till test -s told; cat told"); got != "0 1000001.0\n" {
				t.Errorf("UnkillableStepProgram: %q", got)
			}
			if got := s.run("root", "squeue -h -o %t; ls epilogs 2>&1 | sed 's/.*: //'; ls spool | grep -c n1_"); got != "CG\nNo such file or directory\n1\n" {
				t.Errorf("while the task hangs: %q", got)
			}
			s.run("root", "kill -9 $(cat hangfs.pid); umount -l /tmp/hang; till test -e epilogs; till '! squeue -h | grep .'; till 'sinfo -h -o %T | grep drained'")
			if got := s.run("root", "ls spool | grep n1_; ps -eo args= | grep -E '^(slurmstepd|stepkeeper|spankhost)'; true"); got != "" {
				t.Errorf("left: %s", got)
			}
			s.run("root", "scontrol update nodename=n1 state=resume; till '[ $(sinfo -h -o %T) = idle ]'")
			if got := s.run("alice", "srun -Q echo next"); got != "next\n" {
				t.Errorf("the next step printed %q", got)
			}
		})
	}
}

// TestRootSlurmSuspendedKill: the keeper ends a suspended step whose step daemon was killed.
func TestRootSlurmSuspendedKill(t *testing.T) {
	testkit.RequireRoot(t)
	t.Parallel()
	s := startShell(t, cluster.Site{Release: "22.05"})
	s.run("alice", "(srun -n2 sh -c '>up.$SLURM_PROCID; sleep 70 & exec sleep 60' >out 2>&1 </dev/null; echo $? > code) >/dev/null 2>&1 & till 'test -e up.0 -a -e up.1'")
	s.run("root", "scontrol suspend 1000001; till 'squeue -h -o %T | grep SUSPENDED'")
	time.Sleep(2500 * time.Millisecond) // SIGTSTP's time; no client learns when the freezer has them
	space := space(t, s.Cluster)
	if !kill(t, named(processes(space, cluster.FirstJob), "slurmstepd"), unix.SIGKILL) {
		t.Fatal("no step daemon")
	}
	eventually(t, endsIn, func() error { return left(s.Cluster, space, cluster.FirstJob) })
	if got := s.run("alice", "till test -s code; cat code; tail -1 out"); !strings.HasPrefix(got, "137\n") {
		t.Errorf("srun: %q", got)
	}
	s.run("root", "till '! squeue -h | grep .'; till '[ $(sinfo -h -o %T) = idle ]'")
}
