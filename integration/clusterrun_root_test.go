package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRootClusterRun: a step of several nodes has its tasks where it should, one
// number everywhere, and one record at its head.
func TestRootClusterRun(t *testing.T) {
	waits(t)
	c := startCluster(t, 4, clusterSite{})
	head := c.nodes[0]
	const who = "echo $SLURM_JOB_ID.$SLURM_STEP_ID $SLURM_PROCID $SLURM_NODEID $SLURM_LOCALID $SLURMD_NODENAME $SLURM_NNODES $SLURM_NTASKS $SLURM_STEP_NODELIST"
	t.Run("files", func(t *testing.T) {
		r := head.ctl(t, "run", "-N", "2", "-n", "3", "-i", "none", "-o", "out.%t", "sh", "-c", who)
		if r.code != 0 {
			t.Fatalf("got %v\n%s", r, tail(c.nodes[1].log.String(), 30))
		}
		for rank, want := range []string{"1.0 0 0 0 n1 2 3 n[1-2]", "1.0 1 0 1 n1 2 3 n[1-2]", "1.0 2 1 0 n2 2 3 n[1-2]"} {
			b, err := os.ReadFile(filepath.Join(head.wd, fmt.Sprintf("out.%d", rank)))
			if got := strings.TrimSpace(string(b)); err != nil || got != want {
				t.Errorf("task %d said %q (%v), want %q", rank, got, err, want)
			}
		}
		rec := head.ended(t, "1.0")
		if rec.State != "COMPLETED" || rec.Node != "n[1-2]" || rec.NTasks != 3 || len(rec.Tasks) != 3 || *rec.ExitCode != 0 {
			t.Errorf("the head's record: %+v", rec)
		}
		if part := c.nodes[1].ended(t, "1.0"); part.State != "COMPLETED" || part.Node != "n2" || len(part.Tasks) != 1 || part.Tasks[0].Rank != 2 {
			t.Errorf("the record of n2's part: %+v", part)
		}
	})
	t.Run("labels", func(t *testing.T) {
		r := head.ctl(t, "run", "-N", "4", "-l", "sh", "-c", "echo $SLURMD_NODENAME $SLURM_NODEID")
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		slices.Sort(lines)
		if want := []string{"0: n1 0", "1: n2 1", "2: n3 2", "3: n4 3"}; r.code != 0 || !slices.Equal(lines, want) {
			t.Errorf("got %v", r)
		}
	})
	t.Run("as few nodes as it fits", func(t *testing.T) {
		c.free(t)
		for _, d := range []struct {
			args []string
			want string
		}{
			// Tasks of each node; which nodes, is a matter of whose last step is over.
			{[]string{"-n4"}, "[4]"},
			{[]string{"-n6"}, "[3 3]"},
			{[]string{"-n3", "-c3"}, "[1 1 1]"},
			{[]string{"-n3", "--ntasks-per-node=2"}, "[1 2]"},
			{[]string{"-n6", "--overcommit"}, "[6]"},
		} {
			r := head.ctl(t, append(append([]string{"run"}, d.args...), "sh", "-c", "echo $SLURMD_NODENAME")...)
			c.free(t)
			tasks := make(map[string]int)
			for _, name := range strings.Fields(r.out) {
				tasks[name]++
			}
			if got := fmt.Sprint(slices.Sorted(maps.Values(tasks))); r.code != 0 || got != d.want {
				t.Errorf("%q: want %s, got %v", d.args, d.want, r)
			}
		}
		if r := head.ctl(t, "run", "-n17", "true"); r.code != 1 || !strings.Contains(r.err, "17 tasks of 1 CPU each on 1 to 4 nodes") {
			t.Errorf("more than there is: %v", r)
		}
		if r := head.ctl(t, "run", "-N1", "-n6", "true"); r.code != 1 {
			t.Errorf("on one node: %v", r)
		}
	})
	t.Run("dry run", func(t *testing.T) {
		c.free(t)
		before := head.last(t)
		r := head.ctl(t, "run", "--dry-run", "-N2", "-n5", "-w", "n2", "true")
		contains(t, "stdout", r.out, fmt.Sprintf("step %d.0 on n[1-2], nothing is started\n", before.JobID+1), "node n1\n  tasks      3, ranks 0-2\n", "node n2\n  tasks      2, ranks 3-4\n", "  command    \"true\"\n")
		if r.code != 0 || r.err != "" || strings.Count(r.out, "cpus ") != 2 {
			t.Errorf("got %v", r)
		}
		var doc struct {
			Plan struct {
				JobID uint32 `json:"job_id"`
				Parts []struct {
					Node, Ranks, CPUs string
					NTasks            int
					Writes            []any
				}
			}
		}
		r = head.ctl(t, "run", "--dry-run", "--json", "-N2", "-w", "n2", "-n6", "true")
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil || len(doc.Plan.Parts) != 2 || doc.Plan.Parts[1].Node != "n2" || doc.Plan.Parts[1].NTasks != 3 || doc.Plan.Parts[1].Ranks != "3-5" || doc.Plan.Parts[1].CPUs == "" {
			t.Errorf("%v: %+v, %v", err, doc, r)
		}
		if r := head.ctl(t, "run", "--dry-run", "-N2", "-n9", "true"); r.code != 1 || !strings.Contains(r.err, "does not fit") {
			t.Errorf("more than there is: %v", r)
		}
		// No number is spent, and nothing held.
		if r := head.ctl(t, "run", "-N4", "-n16", "true"); r.code != 0 || head.last(t).JobID != before.JobID+1 {
			t.Errorf("the next step: %v", r)
		}
	})
	c.free(t)
	t.Run("another node alone", func(t *testing.T) {
		if r := head.ctl(t, "run", "-w", "n3", "-n", "2", "-l", "sh", "-c", "echo $SLURMD_NODENAME"); r.code != 0 || r.out != "0: n3\n1: n3\n" && r.out != "1: n3\n0: n3\n" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("excluded, per node", func(t *testing.T) {
		r := head.ctl(t, "run", "-N", "2-3", "-x", "n1,n3", "--ntasks-per-node", "2", "sh", "-c", "echo $SLURMD_NODENAME")
		lines := strings.Fields(r.out)
		slices.Sort(lines)
		if want := []string{"n2", "n2", "n4", "n4"}; r.code != 0 || !slices.Equal(lines, want) {
			t.Errorf("got %v", r)
		}
	})
	t.Run("exit codes", func(t *testing.T) {
		r := head.ctl(t, "run", "-N", "4", "sh", "-c", "exit $((SLURM_PROCID*3))")
		if r.code != 9 {
			t.Errorf("got %v, want 9", r)
		}
		contains(t, "stderr", r.err, "n4: task 3: Exited with exit code 9", "n2: task 1: Exited with exit code 3")
		rec := head.lastEnded(t)
		if rec.State != "FAILED" || rec.ExitCode == nil || *rec.ExitCode != 9 {
			t.Errorf("record: %+v", rec)
		}
		r = head.ctl(t, "run", "-N", "2", "sh", "-c", "test $SLURM_NODEID = 0 || kill -SEGV $$")
		if r.code != 139 {
			t.Errorf("got %v, want 139", r)
		}
	})
	t.Run("kill on bad exit", func(t *testing.T) {
		r := head.ctl(t, "run", "-N", "3", "-K", "sh", "-c", "test $SLURM_NODEID = 2 && exit 7; sleep 86400")
		if r.code < 7 {
			t.Errorf("got %v", r)
		}
		contains(t, "reason", head.lastEnded(t).Reason, "n3")
		c.settled(t)
	})
	t.Run("events", func(t *testing.T) {
		if r := head.ctl(t, "run", "-N", "2", "true"); r.code != 0 {
			t.Fatal(r)
		}
		r := head.ctl(t, "events", head.lastEnded(t).id())
		nodes := map[string]int{}
		last := time.Time{}
		for line := range strings.Lines(r.out) {
			var e struct {
				Time  time.Time `json:"time"`
				Event string    `json:"event"`
				Node  string    `json:"node"`
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if e.Time.Before(last) {
				t.Errorf("%q is not in the order of time", line)
			}
			last = e.Time
			if e.Event == "task_exit" {
				nodes[e.Node]++
			}
		}
		if nodes["n1"] != 1 || nodes["n2"] != 1 {
			t.Errorf("ends of tasks by node: %v\n%v", nodes, r)
		}
	})
	c.settled(t)
}

// TestRootClusterActs: what is done to a step at its head is done to all of it.
func TestRootClusterActs(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{site: site{Slurm: "KillWait=2\n"}})
	head := c.nodes[0]
	start := func(script string) (*process, stepDoc) {
		p := head.start(t, call{args: []string{"run", "-N", "2", "sh", "-c", script}})
		return p, head.running(t)
	}
	t.Run("cancel", func(t *testing.T) {
		p, rec := start("exec sleep 86400")
		if len(rec.Tasks) != 2 || rec.Tasks[1].PID == nil {
			t.Errorf("the running step: %+v", rec)
		}
		if r := head.ctl(t, "cancel", rec.id()); r.code != 0 {
			t.Errorf("cancel: %v", r)
		}
		if r := p.wait(t); r.code != 143 {
			t.Errorf("run: %v, want 143", r)
		}
		if end := head.ended(t, rec.id()); end.State != "CANCELLED" {
			t.Errorf("record %+v", end)
		}
		c.settled(t)
	})
	t.Run("cancel of a part", func(t *testing.T) {
		p, rec := start("exec sleep 86400")
		if r := c.nodes[1].ctl(t, "cancel", rec.id()); r.code != 0 {
			t.Errorf("cancel: %v", r)
		}
		if r := p.wait(t); r.code != 143 {
			t.Errorf("run: %v, want 143", r)
		}
		contains(t, "reason", head.ended(t, rec.id()).Reason, "n2")
		c.settled(t)
	})
	t.Run("signal", func(t *testing.T) {
		p, rec := start("trap 'exit 5' USR1; touch ready.$SLURM_NODEID; while :; do sleep 0.05; done")
		eventually(t, callTimeout, "both tasks", func() error {
			_, err := os.Stat(filepath.Join(head.wd, "ready.0"))
			_, err2 := os.Stat(filepath.Join(head.wd, "ready.1"))
			return errors.Join(err, err2)
		})
		if r := head.ctl(t, "signal", "-s", "USR1", rec.id()); r.code != 0 {
			t.Errorf("signal: %v", r)
		}
		if r := p.wait(t); r.code != 5 {
			t.Errorf("run: %v, want 5", r)
		}
		c.settled(t)
	})
	t.Run("suspend", func(t *testing.T) {
		p, rec := start("exec sleep 86400")
		if r := head.ctl(t, "suspend", fmt.Sprint(rec.JobID)); r.code != 0 {
			t.Errorf("suspend: %v", r)
		}
		for _, n := range c.nodes {
			var doc struct {
				Step struct {
					Suspended *time.Time `json:"suspended"`
				} `json:"step"`
			}
			r := n.ctlRoot(t, "show", "--json", rec.id())
			if err := json.Unmarshal([]byte(r.out), &doc); err != nil || doc.Step.Suspended == nil {
				t.Errorf("%s: not suspended: %v", n.name, r)
			}
		}
		if r := head.ctl(t, "resume", fmt.Sprint(rec.JobID)); r.code != 0 {
			t.Errorf("resume: %v", r)
		}
		if r := head.ctl(t, "cancel", rec.id()); r.code != 0 {
			t.Errorf("cancel: %v", r)
		}
		p.wait(t)
		c.settled(t)
	})
	t.Run("the head's restart", func(t *testing.T) {
		p, rec := start("exec sleep 86400")
		head.kill9(t)
		head.boot(t)
		if again := head.show(t, rec.id()); again.State != "RUNNING" || len(again.Tasks) != 2 || again.Node != "n[1-2]" {
			t.Errorf("after the restart: %+v", again)
		}
		if r := head.ctl(t, "cancel", rec.id()); r.code != 0 {
			t.Errorf("cancel: %v", r)
		}
		if r := p.wait(t); r.code != 143 {
			t.Errorf("run: %v, want 143", r)
		}
		c.settled(t)
	})
}

// TestRootClusterJob: a job of several nodes takes further steps on any of them,
// asked for on any of them, and ends on all of them when its first step has.
func TestRootClusterJob(t *testing.T) {
	waits(t)
	c := startCluster(t, 3, clusterSite{site: site{Slurm: "KillWait=2\n"}})
	head := c.nodes[0]
	p := head.start(t, call{args: []string{"run", "-N", "3", "sh", "-c", "test $SLURM_NODEID = 0 && exit; touch in.$SLURM_NODEID; while test ! -e over; do sleep 0.05; done"}})
	job := head.running(t).JobID
	eventually(t, callTimeout, "the tasks", func() error {
		_, err := os.Stat(filepath.Join(head.wd, "in.1"))
		_, err2 := os.Stat(filepath.Join(head.wd, "in.2"))
		return errors.Join(err, err2)
	})
	in := []string{fmt.Sprintf("SLURM_JOB_ID=%d", job), "SLURM_NNODES=3", "SLURM_NTASKS=3"}
	for i, n := range c.nodes {
		r := n.do(t, call{args: []string{"run", "--overcommit", "-l", "sh", "-c", "echo $SLURM_STEP_ID $SLURMD_NODENAME"}, env: in})
		lines := strings.Split(strings.TrimSpace(r.out), "\n")
		slices.Sort(lines)
		want := []string{fmt.Sprintf("0: %d n1", 2*i+1), fmt.Sprintf("1: %d n2", 2*i+1), fmt.Sprintf("2: %d n3", 2*i+1)}
		if r.code != 0 || !slices.Equal(lines, want) {
			t.Errorf("a step asked for on %s: %v, want %q", n.name, r, want)
		}
		// One without a part on the first node must not take a number twice.
		r = n.do(t, call{args: []string{"run", "--overcommit", "-w", "n3", "-n", "1", "sh", "-c", "echo $SLURM_STEP_ID $SLURMD_NODENAME"}, env: in})
		if want := fmt.Sprintf("%d n3\n", 2*i+2); r.code != 0 || r.out != want {
			t.Errorf("a step on n3 asked for on %s: %v, want %q", n.name, r, want)
		}
	}
	for _, n := range c.nodes {
		if doc := n.status(t); len(doc.Jobs) != 1 {
			t.Errorf("jobs on %s: %+v", n.name, doc.Jobs)
		}
	}
	must(t, os.WriteFile(filepath.Join(head.wd, "over"), nil, 0o644))
	if r := p.wait(t); r.code != 0 {
		t.Errorf("run: %v", r)
	}
	eventually(t, callTimeout, "the end of the job everywhere", func() error {
		for _, n := range c.nodes {
			if doc := n.status(t); len(doc.Jobs) != 0 {
				return fmt.Errorf("%s has jobs %+v", n.name, doc.Jobs)
			}
		}
		return nil
	})
}

// TestRootClusterLost: what is lost of a step ends it everywhere, by name.
func TestRootClusterLost(t *testing.T) {
	waits(t)
	c := startCluster(t, 3, clusterSite{site: site{Slurm: "KillWait=1\n", Stepd: "StepKeepalive=2\n"}})
	head := c.nodes[0]
	start := func() (*process, stepDoc) {
		p := head.start(t, call{args: []string{"run", "-N", "3", "sleep", "86400"}})
		return p, head.running(t)
	}
	check := func(t *testing.T, p *process, rec stepDoc, words ...string) {
		t.Helper()
		if r := p.wait(t); r.code == 0 {
			t.Errorf("run: %v", r)
		} else {
			contains(t, "run's stderr", r.err, words[:1]...)
		}
		end := head.ended(t, rec.id())
		if end.State == "COMPLETED" {
			t.Errorf("record %+v", end)
		}
		contains(t, "reason", end.Reason, words...)
	}
	t.Run("stepd is killed", func(t *testing.T) {
		p, rec := start()
		must(t, killNow(c.nodes[1].findProcess(t, "stepd").pid))
		check(t, p, rec, "n2", "SIGKILL")
		c.settled(t)
	})
	t.Run("noded is killed", func(t *testing.T) {
		p, rec := start()
		c.nodes[2].kill9(t)
		check(t, p, rec, "n3")
		c.nodes[2].boot(t)
		c.settled(t)
	})
	t.Run("the network is cut", func(t *testing.T) {
		p, rec := start()
		c.cut(t, 1)
		check(t, p, rec, "n2")
		c.join(t, 1)
		c.settled(t)
	})
}

// TestRootClusterBack: a noded that comes back in time loses nothing of a step.
func TestRootClusterBack(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{Timeout: 40})
	head := c.nodes[0]
	p := head.start(t, call{args: []string{"run", "-N2", "sleep", "86400"}})
	rec := head.running(t)
	c.nodes[1].kill9(t)
	c.nodes[1].boot(t)
	if r := head.ctl(t, "cancel", rec.id()); r.code != 0 {
		t.Errorf("cancel: %v", r)
	}
	if r := p.wait(t); r.code != 143 {
		t.Errorf("run: %v, want 143", r)
	}
	c.settled(t)
}

// TestRootClusterGone: a node whose noded and stepds never come back ends its steps on
// the others, be it their head, with a part or without, or not; nothing of them is
// left there, and all CPUs are free.
func TestRootClusterGone(t *testing.T) {
	waits(t)
	c := startCluster(t, 3, clusterSite{site: site{Slurm: "KillWait=1\n"}})
	head := c.nodes[0]
	gone := func(n *node, clients ...*process) {
		t.Helper()
		n.kill9(t)
		for _, p := range clients {
			must(t, p.cmd.Process.Kill())
		}
		for _, comm := range []string{"stepd", "spankhost"} {
			for _, p := range n.processes() {
				if p.comm == comm {
					must(t, killNow(p.pid))
				}
			}
		}
	}
	check := func(lost *node, recs ...stepDoc) {
		t.Helper()
		for _, n := range c.nodes {
			if n == lost {
				continue
			}
			eventually(t, callTimeout, "the end on "+n.name, func() error {
				for _, s := range n.ps(t) {
					return fmt.Errorf("step %s is %s", s.id(), s.State)
				}
				if jobs := n.status(t).Jobs; len(jobs) > 0 {
					return fmt.Errorf("jobs %v", jobs)
				}
				return nil
			})
			for _, rec := range recs {
				if r := n.ctlRoot(t, "show", "--json", rec.id()); r.code == 0 {
					end := n.show(t, rec.id())
					contains(t, "the reason of "+rec.id()+" on "+n.name, end.Reason, lost.name)
				}
			}
			eventually(t, callTimeout, "the end of all processes on "+n.name, func() error {
				for _, p := range n.processes() { // those of the lost node have its environment
					if strings.Contains(p.cgroup, "stepd-"+n.hash()) {
						return fmt.Errorf("there is %v", p)
					}
				}
				return nil
			})
			if r := n.ctl(t, "run", "-n4", "true"); r.code != 0 {
				t.Errorf("all CPUs of %s: %v", n.name, r)
			}
		}
	}
	without := head.start(t, call{args: []string{"run", "-J", "without", "-w", "n[2-3]", "sleep", "86400"}})
	first := head.runs(t, "without")
	with := head.start(t, call{args: []string{"run", "-J", "with", "-N3", "sleep", "86400"}})
	second := head.runs(t, "with")
	gone(head, without, with)
	without.wait(t)
	with.wait(t)
	check(head, first, second)
	head.boot(t)
	c.settled(t)

	p := head.start(t, call{args: []string{"run", "-N3", "sleep", "86400"}})
	third := head.running(t)
	gone(c.nodes[2])
	if r := p.wait(t); r.code == 0 {
		t.Errorf("run: %v", r)
	} else {
		contains(t, "run's stderr", r.err, "n3")
	}
	check(c.nodes[2], third)
	c.nodes[2].boot(t)
	c.settled(t)
}

// TestRootClusterRefused: a step that cannot be had leaves nothing behind, and the
// error names the node.
func TestRootClusterRefused(t *testing.T) {
	waits(t)
	c := startCluster(t, 3, clusterSite{CPUs: 2})
	head := c.nodes[0]
	refused := func(t *testing.T, words []string, args ...string) {
		t.Helper()
		r := head.ctl(t, append([]string{"run"}, args...)...)
		if r.code != 1 || r.out != "" {
			t.Errorf("got %v", r)
		}
		contains(t, "stderr", r.err, words...)
		c.settled(t)
	}
	t.Run("more than there is", func(t *testing.T) {
		refused(t, []string{"4 nodes are needed and 3 of 3 can be had"}, "-N", "4", "true")
		refused(t, []string{"7 tasks of 1 CPU each on 3 nodes"}, "-N", "3", "-n", "7", "true")
		refused(t, []string{`slurm.conf has no NodeName "n9"`}, "-w", "n9", "true")
		refused(t, []string{`node "n2" is asked for and excluded`}, "-w", "n2", "-x", "n2", "true")
		refused(t, []string{"--ntasks=1 and --nodelist=n1,n2 exclude each other"}, "-w", "n1,n2", "-n", "1", "true")
	})
	t.Run("busy", func(t *testing.T) {
		p := c.nodes[1].start(t, call{args: []string{"run", "-n", "2", "sleep", "86400"}})
		rec := c.nodes[1].running(t)
		r := head.ctl(t, "run", "-N", "3", "true")
		contains(t, "stderr", r.err, "n2: 0 CPUs are free")
		if r := head.ctl(t, "run", "-N", "2", "sh", "-c", "echo $SLURMD_NODENAME"); r.code != 0 || strings.Contains(r.out, "n2") {
			t.Errorf("two others: %v", r)
		}
		if r := c.nodes[1].ctl(t, "cancel", rec.id()); r.code != 0 {
			t.Error(r)
		}
		p.wait(t)
	})
	t.Run("drained", func(t *testing.T) {
		if r := c.nodes[2].ctlRoot(t, "node", "drain", "bad fan"); r.code != 0 {
			t.Fatal(r)
		}
		refused(t, []string{"n3: drained: bad fan"}, "-N", "3", "true")
		refused(t, []string{"node n3: drained: bad fan"}, "-w", "n3", "true")
		if r := c.nodes[2].ctlRoot(t, "node", "resume"); r.code != 0 {
			t.Fatal(r)
		}
	})
	t.Run("away", func(t *testing.T) {
		c.nodes[2].shutdown(t)
		refused(t, []string{"n3: cannot be reached", "connection refused"}, "-N", "3", "true")
		c.nodes[2].boot(t)
	})
	t.Run("another user there", func(t *testing.T) {
		// n2's noded sees another passwd.
		c.nodes[1].shutdown(t)
		b, err := os.ReadFile("/etc/passwd")
		must(t, err)
		other := filepath.Join(c.dir, "passwd")
		must(t, os.WriteFile(other, []byte(strings.ReplaceAll(string(b), alice.name+":", "stranger:")), 0o644))
		before := c.nodes[1].before
		c.nodes[1].before = append(slices.Clone(before), "unshare", "--mount", "sh", "-c", "mount --bind "+other+" /etc/passwd && exec \"$@\"", "sh")
		c.nodes[1].boot(t)
		refused(t, []string{"node n2", `uid 7001 is user "stepdt1" on n1 and user "stranger" on n2`}, "-N", "3", "true")
		c.nodes[1].shutdown(t) // it remembers users for a while
		must(t, os.WriteFile(other, []byte("root:x:0:0::/root:/bin/sh\n"), 0o644))
		c.nodes[1].boot(t)
		refused(t, []string{"node n2", "there is no user 7001"}, "-N", "3", "true")
		c.nodes[1].shutdown(t)
		c.nodes[1].before = before
		c.nodes[1].boot(t)
	})
}

// TestRootClusterCertificates: who cannot prove to be a node of slurm.conf is told
// so, and the other side's log tells of it.
func TestRootClusterCertificates(t *testing.T) {
	waits(t)
	c := startCluster(t, 4, clusterSite{Tamper: func(c *cluster) {
		tls := filepath.Join(c.dir, "tls")
		// n2 has the certificate of another CA, n3 calls itself so and is not in
		// the others' slurm.conf, n4 is expired.
		other := filepath.Join(c.dir, "other")
		out, err := exec.Command(binary(t, "noded"), "--bootstrap-ca", other, "n2").CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		conf := filepath.Join(c.nodes[1].dir, "stepd.conf")
		b, err := os.ReadFile(conf)
		must(t, err)
		must(t, os.WriteFile(conf, []byte(strings.ReplaceAll(string(b), tls, other)), 0o644))
		for i, m := range c.nodes {
			if i == 2 {
				continue
			}
			path := filepath.Join(m.dir, "slurm.conf")
			b, err := os.ReadFile(path)
			must(t, err)
			must(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(b), "NodeName=n3 ", "NodeName=x3 ")), 0o644))
		}
		expire(t, tls, "n4")
	}})
	for _, tc := range []struct {
		from     int
		to       string
		says     string
		log      int
		logWords string
	}{
		{0, "n2", "certificate signed by unknown authority", 1, "refused a node at 10.213.77.1"},
		{1, "n1", "certificate signed by unknown authority", 0, "refused a node at 10.213.77.2"},
		{2, "n1", "it is for no NodeName that is known there", 0, "which is no NodeName of slurm.conf"},
		{0, "n4", "certificate has expired", 3, "refused a node at 10.213.77.1"},
		{3, "n1", "it refuses the certificate of n4: expired certificate", 0, "certificate has expired"},
	} {
		r := c.nodes[tc.from].ctl(t, "run", "-w", tc.to, "true")
		if r.code != 1 {
			t.Errorf("n%d to %s: %v", tc.from+1, tc.to, r)
		}
		contains(t, fmt.Sprintf("n%d to %s", tc.from+1, tc.to), r.err, tc.says)
		eventually(t, callTimeout, "a line in the other's log", func() error { // it hears of it later
			if log := c.nodes[tc.log].log.String(); !strings.Contains(log, tc.logWords) {
				return fmt.Errorf("no %q in %s", tc.logWords, log)
			}
			return nil
		})
	}
	c.nodes[3].logs(t, "no other node will speak with this one")
}
