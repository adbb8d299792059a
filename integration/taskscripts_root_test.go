package integration

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/internal/testkit"
)

// TestRootTaskScripts: TaskProlog and TaskEpilog of slurm.conf around each task, in
// order with the user's own, in the task's place.
func TestRootTaskScripts(t *testing.T) {
	waits(t)
	testkit.RequireRoot(t)
	scripts, err := os.MkdirTemp(workRoot, "stepd-scripts-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(scripts) })
	must(t, os.Chmod(scripts, 0o755))
	write := func(name, text string) string {
		path := filepath.Join(scripts, name)
		must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
		return path
	}
	write("prolog", "echo export BY=site\necho print site $(id -u)\n")
	write("epilog", "echo site epilog $BY $(id -u) >&2\ncat /proc/self/cgroup > cgroup.epilog\n")
	conf := "TaskProlog=" + scripts + "/prolog\nTaskEpilog=" + scripts + "/epilog\nKillWait=1\n"
	n := startNode(t, site{Slurm: conf})
	own := n.userFile(t, "own", "#!/bin/sh\necho export BY=$BY+own\necho print own\n", 0o755)
	after := n.userFile(t, "after", "#!/bin/sh\necho own epilog >&2\n", 0o755)

	t.Run("order and place", func(t *testing.T) {
		r := n.ctl(t, "run", "--task-prolog="+own, "--task-epilog="+after, "sh", "-c", "echo task $BY; cat /proc/self/cgroup > cgroup.task")
		if r.code != 0 || r.out != "site 7001\nown\ntask site+own\n" {
			t.Errorf("got %v", r)
		}
		if r.err != "own epilog\nsite epilog 7001\n" {
			t.Errorf("stderr: %q", r.err)
		}
		task, err := os.ReadFile(filepath.Join(n.wd, "cgroup.task"))
		must(t, err)
		epilog, err := os.ReadFile(filepath.Join(n.wd, "cgroup.epilog"))
		must(t, err)
		if string(task) != string(epilog) {
			t.Errorf("the epilog was not where the task was:\n%s\n%s", task, epilog)
		}
	})
	t.Run("side by side", func(t *testing.T) {
		slow := n.userFile(t, "slow", "#!/bin/sh\n: >here.$SLURM_PROCID\nwhile [ $(ls here.* | wc -l) -lt 8 ]; do sleep 0.05; done\necho slow >&2\n", 0o755)
		r := n.ctl(t, "run", "-n8", "--task-epilog="+slow, "true")
		if r.code != 0 || strings.Count(r.err, "slow\n") != 8 {
			t.Errorf("got %v", r)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		n.restartWith(t, conf+"PrologEpilogTimeout=2\n")
		defer n.restartWith(t, conf)
		hang := n.userFile(t, "hang", "#!/bin/sh\nexec sleep 60\n", 0o755)
		r := n.ctl(t, "run", "--task-prolog="+hang, "true")
		if r.code != 1 {
			t.Errorf("got %v", r)
		}
		contains(t, "stderr", r.err, `task 0: task_prolog: --task-prolog "`+hang+`": it did not end within 2 s`)
	})
	t.Run("cancelled epilog", func(t *testing.T) {
		// Its sleep ignores SIGTERM: SIGKILL has to find it where the tasks are.
		n.userFile(t, "stay", "#!/bin/sh\ntrap '' TERM\n: > in.epilog\nsleep 60 & wait; wait\nsleep 60\n", 0o755)
		p := n.start(t, call{args: []string{"run", "--task-epilog=stay", "true"}})
		eventually(t, callTimeout, "the epilog", func() error {
			_, err := os.Stat(filepath.Join(n.wd, "in.epilog"))
			return err
		})
		steps := n.ps(t)
		if len(steps) != 1 {
			t.Fatalf("ps shows %d steps", len(steps))
		}
		if r := n.ctl(t, "cancel", steps[0].id()); r.code != 0 {
			t.Error(r)
		}
		if r := p.wait(t); r.code != 0 {
			t.Errorf("got %v", r)
		}
	})
	t.Run("batch", func(t *testing.T) {
		n.userFile(t, "job", "#!/bin/sh\necho script $BY\n", 0o755)
		if r := n.ctl(t, "batch", "-W", "-o", "job.out", "job"); r.code != 0 {
			t.Error(r)
		}
		eventually(t, callTimeout, "the job's output", func() error {
			b, err := os.ReadFile(filepath.Join(n.wd, "job.out"))
			if err == nil && !strings.Contains(string(b), "site 7001\nscript site\n") {
				err = errors.New(string(b))
			}
			return err
		})
	})
	t.Run("site's own fails", func(t *testing.T) {
		write("prolog", "exit 6\n")
		r := n.ctl(t, "run", "echo", "ran")
		if r.code != 6 || r.out != "" {
			t.Errorf("got %v", r)
		}
		contains(t, "stderr", r.err, `task 0: task_prolog: TaskProlog "`+scripts+`/prolog": Exited with exit code 6`)
	})
}
