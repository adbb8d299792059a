package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// jobless waits until no node has a job.
func (c *cluster) jobless(t testing.TB) {
	t.Helper()
	eventually(t, callTimeout, "the end of all jobs", func() error {
		for _, n := range c.nodes {
			if jobs := n.status(t).Jobs; len(jobs) > 0 {
				return fmt.Errorf("%s still has job %d", n.name, jobs[0].JobID)
			}
		}
		return nil
	})
}

// spanning starts an allocation of both nodes, and returns its number.
func (c *cluster) spanning(t testing.TB, args ...string) (p *process, job string) {
	t.Helper()
	p = c.nodes[0].held(t, append([]string{"-N2"}, args...)...)
	job = fmt.Sprint(c.nodes[0].status(t).Jobs[0].JobID)
	// It has the number before the other node has given its share.
	eventually(t, callTimeout, "the job on n2", func() error {
		if r := c.nodes[0].ctl(t, "run", "--jobid", job, "-N2", "-n2", "--overlap", "true"); r.code != 0 {
			return errors.New(r.err)
		}
		return nil
	})
	return p, job
}

// waitsFor sets how long the node's jobs wait for others, from its next start on.
func (n *node) waitsFor(t testing.TB, limit time.Duration) {
	t.Helper()
	f := n.path("stepd.conf")
	told := regexp.MustCompile(`NodeTimeout=\d+`).ReplaceAllString(readFile(t, f), fmt.Sprintf("NodeTimeout=%.0f", limit.Seconds()))
	must(t, os.WriteFile(f, []byte(told), 0o600))
}

// TestRootClusterAlloc: an allocation of several nodes has a share of each or of none, its
// steps have theirs of it, and it ends on all nodes.
func TestRootClusterAlloc(t *testing.T) {
	c := startCluster(t, 2, clusterSite{site: site{Slurm: "KillWait=1\n"}, Tamper: func(c *cluster) {
		must(t, os.WriteFile(filepath.Join(c.dir, "prolog"), []byte(fmt.Sprintf(`#!/bin/sh
echo "$SLURMD_NODENAME $SLURM_JOB_NUM_NODES $SLURM_NODELIST $SLURM_JOB_CPUS_PER_NODE" >>%[1]s/prologs.$SLURMD_NODENAME
test ! -e %[1]s/bad || test $SLURMD_NODENAME != n2
`, c.dir)), 0o755))
		for i, more := range []string{"", "MaxTasksPerNode=3\n"} {
			f := c.nodes[i].path("slurm.conf")
			must(t, os.WriteFile(f, []byte(readFile(t, f)+"LaunchParameters=use_interactive_step\nPrologFlags=Alloc\nProlog="+c.dir+"/prolog\n"+more), 0o644))
			c.nodes[i].waitsFor(t, 20*time.Second) // a job is not to lose a node that is restarted on a busy machine
		}
	}})
	n1, n2 := c.nodes[0], c.nodes[1]
	t.Run("steps", func(t *testing.T) {
		r := n1.do(t, call{args: []string{"alloc", "-N2", "-n4", "sh", "-c", `
echo $SLURM_JOB_NODELIST $SLURM_NNODES $SLURM_JOB_NUM_NODES $SLURM_NTASKS "$SLURM_TASKS_PER_NODE" "$SLURM_JOB_CPUS_PER_NODE"
stepctl run -l sh -c 'echo $SLURM_STEP_ID $SLURMD_NODENAME $SLURM_NODEID $SLURM_LOCALID' | sort
one='echo $SLURM_STEP_ID $SLURMD_NODENAME $SLURM_JOB_NODELIST $SLURM_JOB_NUM_NODES "$SLURM_JOB_CPUS_PER_NODE" $SLURM_STEP_NODELIST $SLURM_NTASKS'
stepctl run -w n1 -N1 -n1 sh -c "$one"
stepctl run -w n2 -n2 sh -c "$one"
stepctl run -x n1 -n1 sh -c "$one"
stepctl run --interactive sh -c "$one"
stepctl run --interactive -x n1 true
stepctl run -n5 true
stepctl run -w n3 true
exit 5`}, env: n1.withStepctl()})
		want := `n[1-2] 2 2 4 2(x2) 2(x2)
0: 0 n1 0 0
1: 0 n1 0 1
2: 0 n2 1 0
3: 0 n2 1 1
1 n1 n[1-2] 2 2(x2) n1 1
2 n2 n[1-2] 2 2(x2) n2 2
2 n2 n[1-2] 2 2(x2) n2 2
3 n2 n[1-2] 2 2(x2) n2 1
4294967290 n1 n[1-2] 2 2(x2) n1 1
`
		if r.code != 5 || r.out != want {
			t.Errorf("got %v, want\n%s", r, want)
		}
		contains(t, "stderr", r.err, "interactive: it is a step of the node that was asked for the job", "5 tasks of 1 CPU each on", `no NodeName "n3"`)
		for _, name := range []string{"n1", "n2"} {
			if got := readFile(t, filepath.Join(c.dir, "prologs."+name)); got != name+" 2 n[1-2] 2(x2)\n" {
				t.Errorf("the prolog on %s: %q", name, got)
			}
		}
		c.jobless(t)
	})
	t.Run("a shell", func(t *testing.T) {
		s := openTerminal(t, 24, 80)
		s.ctl(n1, call{args: []string{"alloc", "-N2", "-n2"}, env: append(n1.withStepctl(), "SHELL=/bin/sh")})
		s.sees("$ ")
		s.types("echo $SLURM_STEP_ID $SLURMD_NODENAME $SLURM_JOB_NODELIST $SLURM_NTASKS\n")
		s.sees("4294967290 n1 n[1-2] 2\r\n")
		s.sees("$ ")
		s.types("stepctl run -l sh -c 'echo on $SLURMD_NODENAME' | sort\n") // it holds none of the CPUs
		s.sees("0: on n1\r\n1: on n2\r\n")
		s.sees("$ ")
		s.types("exit 4\n")
		s.ends(4)
		c.jobless(t)
	})
	t.Run("turns", func(t *testing.T) {
		p, job := c.spanning(t)
		gate := filepath.Join(n1.wd, "gate")
		must(t, os.RemoveAll(gate))
		first := n1.start(t, call{args: []string{"run", "-J", "first", "--jobid", job, "-N2", "-n2", "sh", "-c", "while test ! -e gate; do sleep 0.05; done"}})
		n1.runs(t, "first")
		if r := n1.ctl(t, "run", "--jobid", job, "-N2", "-n2", "--overlap", "echo", "beside"); r.out != "beside\nbeside\n" {
			t.Errorf("--overlap: %v", r)
		}
		words := filepath.Join(n1.wd, "words")
		second := n1.start(t, call{program: "/bin/sh", args: []string{"-c", "stepctl run --jobid " + job + " -N2 -n2 sh -c 'test -e gate && echo after' 2>words"}, env: n1.withStepctl()})
		eventually(t, callTimeout, "the word that it waits", func() error {
			if b, err := os.ReadFile(words); err != nil || !strings.Contains(string(b), "waiting for 2 CPUs of job "+job) {
				return fmt.Errorf("%q, %v", b, err)
			}
			return nil
		})
		must(t, os.WriteFile(gate, nil, 0o644))
		if r := first.wait(t); r.code != 0 {
			t.Errorf("the first step: %v", r)
		}
		if r := second.wait(t); r.code != 0 || r.out != "after\nafter\n" {
			t.Errorf("the second step: %v", r)
		}
		if r := n2.ctl(t, "cancel", job); r.code != 0 {
			t.Errorf("cancel at the other node: %v", r)
		}
		c.jobless(t)
		_ = p.cmd.Process.Kill() // it gives its command a second
		n1.killOwn(t, p)
	})
	t.Run("all or none", func(t *testing.T) {
		for _, d := range []struct {
			args []string
			want []string
		}{
			// What a node has is asked first; what else it has to say, when n1 has given its share.
			{[]string{"-N2", "-n8"}, []string{"node n2: ", "MaxTasksPerNode"}},
			{[]string{"-N3"}, []string{"3 nodes are needed and 2 of 2 can be had"}},
			{[]string{"-w", "n2"}, []string{"here n1", "ask for it on one of those"}},
		} {
			r := n1.do(t, call{args: append(append([]string{"alloc"}, d.args...), "echo", "ran"), env: n1.withStepctl()})
			if r.code != 1 || r.out != "" {
				t.Errorf("%q: %v", d.args, r)
			}
			contains(t, fmt.Sprintf("stderr of %q", d.args), r.err, d.want...)
			if jobs := n1.status(t).Jobs; len(jobs) > 0 {
				t.Errorf("%q: n1 has %+v", d.args, jobs)
			}
		}
		bad := filepath.Join(c.dir, "bad")
		must(t, os.WriteFile(bad, nil, 0o644))
		if r := n1.do(t, call{args: []string{"alloc", "-N2", "echo", "ran"}}); r.code != 1 || r.out != "" || !strings.Contains(r.err, "node n2: Job prolog failed") {
			t.Errorf("with a prolog that fails on n2: %v", r)
		}
		must(t, os.Remove(bad))
		c.jobless(t)
		if r := n1.do(t, call{args: []string{"alloc", "-N2", "true"}}); r.code != 1 || !strings.Contains(r.err, "n2: drained: ") {
			t.Errorf("with a drained node: %v", r)
		}
		if r := n2.ctlRoot(t, "node", "resume"); r.code != 0 {
			t.Fatal(r)
		}
		c.jobless(t)
	})
	t.Run("its client is killed", func(t *testing.T) {
		p, job := c.spanning(t)
		s := n1.start(t, call{args: []string{"run", "-J", "last", "--jobid", job, "-N2", "-n2", "sleep", "86394"}})
		n1.runs(t, "last")
		must(t, p.cmd.Process.Kill())
		if r := s.wait(t); r.code != 143 {
			t.Errorf("its step: %v", r)
		}
		c.jobless(t)
		n1.killOwn(t, p)
	})
	t.Run("nodeds are restarted", func(t *testing.T) {
		p, job := c.spanning(t)
		inside := func(what string) {
			t.Helper()
			r := n1.ctl(t, "run", "--jobid", job, "-N2", "-n2", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_JOB_CPUS_PER_NODE")
			lines := strings.Split(strings.TrimSpace(r.out), "\n")
			slices.Sort(lines)
			if !slices.Equal(lines, []string{"n1 1(x2)", "n2 1(x2)"}) {
				t.Errorf("a step after the restart of %s: %v", what, r)
			}
		}
		n2.kill9(t)
		n2.boot(t)
		inside("n2")
		n1.kill9(t)
		n1.boot(t)
		inside("n1")
		n2.kill9(t)
		n1.kill9(t)
		n1.waitsFor(t, time.Second)
		n1.boot(t)
		if r := p.wait(t); !strings.Contains(r.err, "has been revoked") {
			t.Errorf("the client of a job that has lost a node: %v", r)
		}
		n1.logs(t, `node \"n2\" is lost: its noded has not answered for 1s (NodeTimeout)`)
		n2.waitsFor(t, time.Second) // it asks for the job soon
		n2.boot(t)
		c.jobless(t)
	})
}
