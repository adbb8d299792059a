package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// pmi1 is a rank's program: the words of testdata/tasks/pmi1.sh, and script.
func pmi1(t testing.TB, script string) string {
	t.Helper()
	words, err := os.ReadFile("testdata/tasks/pmi1.sh")
	must(t, err)
	return string(words) + "\n" + script
}

// spawning runs ranks of script under pmi2.
func (n *node) spawning(t testing.TB, ranks int, script string, flags ...string) result {
	t.Helper()
	return n.ctl(t, append(append([]string{"run", "-n", fmt.Sprint(ranks), "--mpi=pmi2"}, flags...), "bash", "-c", pmi1(t, script))...)
}

// TestRootSpawn: what a spawned step is, seen by its user: its output is the
// spawning rank's, and stepctl run ends when all of it has.
func TestRootSpawn(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	r := n.spawning(t, 2, `
		[ "$PMI_RANK" = 1 ] || exit 0
		hello
		WDIR=/usr spawn 2 sh -c 'sleep 0.3; echo "child $PMI_RANK of $PMI_SIZE of $SLURM_STEP_ID spawned $PMI_SPAWNED in $PWD arg $0"' 'a b=c'
		bye; echo parent ends`)
	if r.code != 0 || r.err != "" {
		t.Errorf("got %v", r)
	}
	contains(t, "stdout", r.out, "cmd=spawn_result rc=0 jobid=1.1 errcodes=0,0\n", "parent ends\n",
		"child 0 of 2 of 1 spawned 1 in /usr arg a b=c\n", "child 1 of 2 of 1 spawned 1 in /usr arg a b=c\n")
	child := n.ended(t, "1.1")
	if child.State != "COMPLETED" || child.NTasks != 2 || child.Name != "sh" || child.UID != n.show(t, "1.0").UID {
		t.Errorf("the spawned step: %+v", child)
	}
	if r := n.ctl(t, "show", "1.1", "--json"); !strings.Contains(strings.ReplaceAll(r.out, " ", ""), `"parent":{"job_id":1,"step_id":0}`) {
		t.Errorf("its parent is not told: %v", r)
	}

	t.Run("two commands", func(t *testing.T) {
		program := n.userFile(t, "child.sh", pmi1(t, "hello; ask 'cmd=get key=given'; ask 'cmd=get_appnum'; bye\n"), 0o755)
		r := n.spawning(t, 1, `
			hello
			(block 2 1 2 echo first; block 2 2 1 bash `+program+`) >&"$PMI_FD"
			IFS= read -r -u "$PMI_FD" answer; echo "$answer"
			bye`)
		want := []string{"cmd=spawn_result rc=0 jobid=2.1 errcodes=0,0,0", "first", "first", "cmd=get_result rc=0 value=by the parent", "cmd=appnum rc=0 appnum=1"}
		for _, line := range want {
			contains(t, "stdout", r.out, line+"\n")
		}
		if r.code != 0 || r.err != "" || strings.Count(r.out, "\n") != len(want) {
			t.Errorf("got %v", r)
		}
	})
	t.Run("label", func(t *testing.T) {
		r := n.spawning(t, 2, `[ "$PMI_RANK" = 1 ] || exit 0; hello; quiet_spawn 1 echo from the child; bye`, "-l")
		if r.code != 0 || r.out != "1: from the child\n" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("file", func(t *testing.T) {
		r := n.spawning(t, 1, `echo before; hello; quiet_spawn 1 echo from the child; bye`, "-o", "out")
		b, err := os.ReadFile(filepath.Join(n.wd, "out"))
		if r.code != 0 || err != nil || string(b) != "before\nfrom the child\n" {
			t.Errorf("%q, %v, %v", b, err, r)
		}
	})
	t.Run("a spawned one spawns", func(t *testing.T) {
		program := n.userFile(t, "child.sh", pmi1(t, "hello; spawn 1 echo the grandchild; bye\n"), 0o755)
		r := n.spawning(t, 1, "hello; quiet_spawn 1 bash "+program+"; bye")
		contains(t, "stdout", r.out, "the grandchild\n", "rc=0 jobid=5.2")
		if r.code != 0 || r.err != "" {
			t.Errorf("got %v", r)
		}
	})
	n.checkClean(t)
}

// TestRootSpawnFails: what cannot be started is reported to rank and user, and the step
// goes on; exit codes of spawned programs are told and not the step's.
func TestRootSpawnFails(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "SpawnStepsMax=2\n"})
	r := n.spawning(t, 1, `hello; spawn 2 /no/such/file; bye; exit 3`)
	contains(t, "stdout", r.out, "cmd=spawn_result rc=-1 msg=", "(rank_0-1)", "errcodes=14,14\n")
	contains(t, "stderr", r.err, "execve(): /no/such/file: No such file or directory")
	if r.code != 3 {
		t.Errorf("got %v", r)
	}
	r = n.spawning(t, 1, `hello; WDIR=no/such spawn 1 true; WDIR=; spawn 1 sh -c 'exit 5'; bye`)
	contains(t, "stdout", r.out, "cmd=spawn_result rc=-1", "cmd=spawn_result rc=0")
	contains(t, "stderr", r.err, "step 2.2: task 0: Exited with exit code 5")
	if r.code != 0 {
		t.Errorf("got %v", r)
	}
	r = n.spawning(t, 1, `hello; HOSTS=n9 spawn 1 true; HOSTS=localhost:x spawn 1 true; HOSTS=localhost:1 spawn 1 echo here; bye`)
	contains(t, "stdout", r.out, "its_hint_host_names_\"n9\"", "several_nodes:_use_Slurm", "after_the_colon_there_is_a_number_of_tasks", "here\n")
	if r.code != 0 {
		t.Errorf("got %v", r)
	}
	r = n.spawning(t, 1, `hello; for i in 1 2; do quiet_spawn 1 sh -c 'while test ! -e go; do sleep 0.05; done'; done; spawn 1 true; : >go; bye`)
	contains(t, "stdout", r.out, "msg=job_4_runs_2_spawned_steps,_and_2_is_the_limit_(SpawnStepsMax)")
	if r.code != 0 {
		t.Errorf("got %v", r)
	}
	n.checkClean(t)
}

// TestRootSpawnEnds: ranks that are connected end together, however it begins, and
// nothing is left.
func TestRootSpawnEnds(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	const child = `quiet_spawn 2 sleep 1000; echo up >up; `
	for i, c := range []struct {
		name   string
		script string // after the spawn
		do     func(t *testing.T, parent stepDoc)
		code   int
		words  []string
	}{
		{"the parent aborts", `printf 'cmd=abort exitcode=7\n' >&"$PMI_FD"; sleep 1000`, nil, 7, []string{"STEP %d.1 ON vm CANCELLED", "STEP %d.0 ON vm CANCELLED"}},
		{"the child is cancelled", "sleep 1000", func(t *testing.T, p stepDoc) {
			n.ctl(t, "cancel", fmt.Sprintf("%d.1", p.JobID))
		}, 143, []string{"STEP %d.1 ON vm CANCELLED", "STEP %d.0 ON vm CANCELLED"}},
		{"the parent is cancelled", "sleep 1000", func(t *testing.T, p stepDoc) {
			n.ctl(t, "cancel", fmt.Sprintf("%d.0", p.JobID))
		}, 143, []string{"STEP %d.1 ON vm CANCELLED"}},
		{"the child's stepd is killed", "sleep 1000", func(t *testing.T, p stepDoc) {
			must(t, syscall.Kill(n.show(t, fmt.Sprintf("%d.1", p.JobID)).StepdPID, syscall.SIGKILL))
		}, 1, []string{"STEP %d.0 ON vm CANCELLED"}},
		{"the parent's stepd is killed", "sleep 1000", func(t *testing.T, p stepDoc) {
			must(t, syscall.Kill(p.StepdPID, syscall.SIGKILL))
		}, 1, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_ = os.Remove(filepath.Join(n.wd, "up"))
			p := n.start(t, call{args: []string{"run", "--mpi=pmi2", "bash", "-c", pmi1(t, "hello; "+child+c.script)}})
			var parent stepDoc
			eventually(t, callTimeout, "the spawned step", func() error {
				if _, err := os.Stat(filepath.Join(n.wd, "up")); err != nil {
					return err
				}
				for _, s := range n.ps(t) {
					if s.StepID == 0 {
						parent = s
					}
				}
				return nil
			})
			if c.do != nil {
				c.do(t, n.show(t, parent.id()))
			}
			r := p.wait(t)
			if r.code != c.code {
				t.Errorf("want exit code %d, got %v", c.code, r)
			}
			for _, w := range c.words {
				contains(t, "stderr", r.err, fmt.Sprintf(w, i+1)) // by its number: an abort may come before ps
			}
			eventually(t, callTimeout, "the end of both", func() error {
				if steps := n.ps(t); len(steps) > 0 {
					return fmt.Errorf("step %s is %s", steps[0].id(), steps[0].State)
				}
				return nil
			})
			n.checkClean(t)
		})
	}
}
