package slurm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

// TestRootRuntime runs containers of a real runtime, by its command run and by create and start:
// of several tasks, of root, requeued; and whatever is killed, nothing of them is left.
func TestRootRuntime(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	onReleases(t, func(t *testing.T, release string) {
		site := cluster.Sites["runc"]
		site.Release = release
		n := &runtimeNode{shell: startShell(t, site)}
		n.space = space(t, n.Cluster)
		n.run("alice", "$DIR/bundle")
		n.run("root", "$DIR/bundle")
		for _, how := range []string{"run", "create"} {
			n.tasks(how)
			n.kills(how)
			n.run("root", "mv $DIR/oci.start $DIR/oci.conf 2>/dev/null || :")
		}
		n.requeued()
	})
}

// runtimeNode is a node with a runtime.
type runtimeNode struct {
	shell
	space string // the namespace of its processes but for the containers'
}

// search lists the cluster's processes, and those in the containers' namespaces.
func (n *runtimeNode) search(is func(title string) bool) (found []process) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		args, err1 := os.ReadFile(dir + "/cmdline")
		env, err2 := os.ReadFile(dir + "/environ")
		ns, err3 := os.Readlink(dir + "/ns/pid")
		title := string(bytes.ReplaceAll(args, []byte{0}, []byte(" ")))
		if errors.Join(err1, err2, err3) == nil && is(title) && (ns == n.space || bytes.Contains(env, []byte(n.Dir))) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			found = append(found, process{pid, title})
		}
	}
	return found
}

// tasks run several at once, and root's, which has cgroups of its own made.
func (n *runtimeNode) tasks(how string) {
	n.t.Helper()
	for user, want := range map[string]string{"alice": "0 1\n1 1\n2 1\nrc 2\n", "root": "0 1\n1 1\n2 1\nrc 2\n"} {
		if got := n.run(user, "srun -Q -n3 --container=b /bin/sh -c 'echo $SLURM_PROCID $$; exit $SLURM_PROCID' 2>e >o; rc=$?; sort o; echo rc $rc; [ $(wc -l <o) = 3 ] || cat e"); got != want {
			n.t.Errorf("%s: %s: %q", how, user, got)
		}
		n.clean(how, user, true)
	}
}

// clean waits until a user has nothing left on the node after something. known says that the runtime
// has learnt of the end.
func (n *runtimeNode) clean(after, user string, known bool) {
	n.t.Helper()
	eventually(n.t, time.Minute, func() error {
		for _, p := range n.search(func(title string) bool {
			return strings.HasPrefix(title, "runc ") || strings.HasPrefix(title, "sleep 4711")
		}) {
			return fmt.Errorf("%s: %s: process %d %q", after, user, p.pid, p.title)
		}
		roots, err := n.CgroupRoots(cluster.Node)
		left, _ := filepath.Glob(n.Path("spool/oci-job*"))
		for _, root := range roots {
			dirs, _ := filepath.Glob(root + "/job_*")
			left = append(left, dirs...)
		}
		if len(left) > 0 {
			err = errors.Join(err, fmt.Errorf("%s: %s: left: %q", after, user, left))
		}
		return err
	})
	if !known {
		n.run("root", "rm -rf /tmp/runc-"+user)
	} else if got := n.run(user, "ls /tmp/runc-"+user); got != "" {
		n.t.Errorf("%s: %s: the runtime still knows %s", after, user, got)
	}
}

// kills kills one process after the other of a step with two tasks.
func (n *runtimeNode) kills(how string) {
	n.t.Helper()
	victims := map[string]func(title string) bool{
		"step daemon": func(t string) bool { return strings.HasPrefix(t, "slurmstepd: [1") },
		"spankhost":   func(t string) bool { return strings.HasPrefix(t, "spankhost: [1") },
		"task": func(t string) bool {
			return strings.HasPrefix(t, "sh -c runc ") || strings.Contains(t, "slurmstepd container run ")
		},
		"runtime": func(t string) bool { return strings.HasPrefix(t, "runc ") },
		"program": func(t string) bool { return strings.HasPrefix(t, "sleep 4711") },
	}
	for name, is := range victims {
		if name == "runtime" && how != "run" {
			continue // it has gone when the container runs
		}
		step := n.Command(n.t.Context(), "alice", "timeout", "120", "srun", "-Q", "-n2", "--container=b", "/bin/sh", "-c", "exec sleep 4711")
		said := new(bytes.Buffer)
		step.Stdout, step.Stderr = said, said
		must(n.t, step.Start())
		eventually(n.t, time.Minute, func() error {
			if found := n.search(victims["program"]); len(found) != 2 {
				return fmt.Errorf("%s: the tasks have not begun: %v", how, found)
			}
			return nil
		})
		found := n.search(is)
		if len(found) == 0 {
			n.t.Errorf("%s: there is no %s", how, name)
		}
		for _, p := range found {
			kill(n.t, p, unix.SIGKILL)
		}
		err := step.Wait()
		if code := step.ProcessState.ExitCode(); err == nil || code == 124 {
			n.t.Errorf("%s: after the kill of the %s srun ended with %d: %s", how, name, code, said)
		}
		n.clean(how+": kill of the "+name, "alice", name != "step daemon" && name != "spankhost")
	}
}

// requeued: a job whose step daemon was killed runs again, with containers of the same names. slurmctld
// has it wait for two minutes, which are cut short.
func (n *runtimeNode) requeued() {
	n.run("alice", "printf '#!/bin/sh\\necho run $SLURM_RESTART_COUNT; [ $SLURM_RESTART_COUNT ] || exec sleep 4711\\n' > s; sbatch --parsable -o job.out --open-mode=append --container=$PWD/b s >job; till grep run job.out")
	for _, p := range n.search(func(title string) bool { return strings.HasPrefix(title, "slurmstepd: [1") }) {
		kill(n.t, p, unix.SIGKILL)
	}
	n.clean("requeue", "alice", false)
	if got := n.run("alice", "till '! jobs_ | grep .'; till scontrol requeue $(cat job); till 'squeue -h -o %r | grep BeginTime'; scontrol update JobId=$(cat job) StartTime=now; till 'grep run.1 job.out'; cat job.out"); got != "run\nrun 1\n" {
		n.t.Errorf("a job that was requeued: %q", got)
	}
}
