package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// nsOf is a namespace of a process of the node.
func nsOf(t testing.TB, pid int, kind string) string {
	t.Helper()
	s, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	must(t, err)
	return s
}

// TestRootLinuxContainer: the steps of a job share a pid namespace and a user
// namespace; whatever acts for a step is in the same; noded's restart changes
// nothing, and all of it goes with the job.
func TestRootLinuxContainer(t *testing.T) {
	waits(t)
	base := containerBase(t)
	epilog := filepath.Join(base, "epilog.sh")
	must(t, os.WriteFile(epilog, []byte("#!/bin/sh\nreadlink /proc/self/ns/pid /proc/self/ns/user /proc/self/ns/mnt > /tmp/epilog\n"), 0o755))
	n := startNode(t, site{
		Slurm:     "JobContainerType=job_container/linux\nTaskEpilog=" + epilog + "\n",
		Container: "AutoBasePath=true\nBasePath=" + base + "\nCloneNSFlags=CLONE_NEWPID,CLONE_NEWUSER\n",
	})
	n.userFile(t, "wait.sh", "touch ready.$SLURM_PROCID\nwhile ! test -e go; do sleep 0.05; done\n", 0o755)
	p := n.start(t, call{args: []string{"run", "-n", "2", "sh", "wait.sh"}})
	st := n.running(t)
	eventually(t, callTimeout, "both tasks", func() error {
		for _, rank := range []string{"0", "1"} {
			if _, err := os.Stat(filepath.Join(n.wd, "ready."+rank)); err != nil {
				return err
			}
		}
		return nil
	})
	st = n.show(t, st.id())
	var pids []int
	for _, task := range st.Tasks {
		if task.PID == nil {
			t.Fatalf("a task without a pid: %+v", st)
		}
		pids = append(pids, *task.PID)
	}
	for _, kind := range []string{"pid", "user", "mnt"} {
		if a, b := nsOf(t, pids[0], kind), nsOf(t, pids[1], kind); a != b || a == nsOf(t, os.Getpid(), kind) {
			t.Errorf("%s namespaces: %s and %s, ours is %s", kind, a, b, nsOf(t, os.Getpid(), kind))
		}
	}
	job := fmt.Sprint(st.JobID)
	in := func(script string, flags ...string) result {
		return n.ctl(t, append(append([]string{"run", "--jobid", job, "--overcommit"}, flags...), "sh", "-c", script)...)
	}
	t.Run("steps see each other and nobody else", func(t *testing.T) {
		r := in(`test $SLURM_TASK_PID = $$ && cat /proc/1/comm && cat /proc/[0-9]*/comm | grep -c -e noded -e stepd$ -e spankhost; kill -9 1 2>&1 | grep -ci "not permitted"`)
		if r.out != "stepd-init\n0\n0\n" && r.out != "stepd-init\n0\n1\n" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("the tasks are one process group", func(t *testing.T) {
		r := in("cut -d' ' -f5 /proc/self/stat", "-n", "3")
		groups := strings.Fields(r.out)
		if len(groups) != 3 || groups[0] != groups[1] || groups[0] != groups[2] || groups[0] == "0" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("TaskEpilog is where the task was", func(t *testing.T) {
		// The epilog of the step before has run.
		want := nsOf(t, pids[0], "pid") + "\n" + nsOf(t, pids[0], "user") + "\n" + nsOf(t, pids[0], "mnt") + "\n"
		if r := in("cat /tmp/epilog"); r.out != want {
			t.Errorf("want %q, got %v", want, r)
		}
	})
	t.Run("MPI", func(t *testing.T) {
		if r := in("echo $PMI_SIZE", "-n", "2", "--mpi=pmi2"); r.code != 0 || r.out != "2\n2\n" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("after noded's restart", func(t *testing.T) {
		n.kill9(t)
		n.boot(t)
		if r := in("readlink /proc/self/ns/pid"); r.out != nsOf(t, pids[0], "pid")+"\n" {
			t.Errorf("got %v", r)
		}
	})
	n.letGo(t)
	if r := p.wait(t); r.code != 0 {
		t.Errorf("the first step: %v", r)
	}
	n.checkClean(t)
	emptyBase(t, base)
	t.Run("process 1 is killed", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "sleep", "86400"}})
		st := n.running(t)
		must(t, killNow(n.findProcess(t, "stepd-init").pid))
		if r := p.wait(t); r.code != 137 {
			t.Errorf("its tasks end with it: %v", r)
		}
		if r := n.ended(t, st.id()).Reason; !strings.HasPrefix(r, "process 1 of the job's pid namespace was killed") {
			t.Errorf("the reason is %q", r)
		}
		n.checkClean(t)
		emptyBase(t, base)
	})
}
