package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestRootFailureTable is the failure table of spank(8) for the hooks that end a
// step, in the three ways in which a step comes to be: its exit code, and
// whether the node is drained.
func TestRootFailureTable(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildRude(t, n)
	script := n.userFile(t, "job.sh", "#!/bin/sh\necho ran\n", 0o755)
	ways := map[string]func(t *testing.T) result{
		"run": func(t *testing.T) result { return n.ctl(t, "run", "true") },
		"alloc": func(t *testing.T) result {
			return n.do(t, call{args: []string{"alloc", "stepctl", "run", "true"}, env: n.withStepctl()})
		},
		"batch": func(t *testing.T) result { return n.ctl(t, "batch", "-W", "-o", "out", script) },
	}
	type end struct {
		code  int
		drain bool
	}
	for _, c := range []struct {
		hook string
		ends map[string]end
	}{
		{"init", map[string]end{"run": {0, false}, "alloc": {1, false}, "batch": {1, true}}},
		{"init_post_opt", map[string]end{"run": {0, false}, "alloc": {1, false}, "batch": {1, true}}},
		{"user_init", map[string]end{"run": {0, false}, "alloc": {1, false}, "batch": {1, true}}},
		{"task_init_privileged", map[string]end{"run": {1, false}, "alloc": {1, false}, "batch": {1, false}}},
		{"task_post_fork", map[string]end{"run": {0, false}, "alloc": {1, false}, "batch": {1, true}}},
		{"task_init", map[string]end{"run": {1, false}, "alloc": {1, false}, "batch": {1, false}}},
		{"task_exit", map[string]end{"run": {0, false}, "alloc": {0, false}, "batch": {0, false}}},
		{"exit", map[string]end{"run": {0, false}, "alloc": {0, false}, "batch": {0, false}}},
	} {
		for way, do := range ways {
			t.Run(c.hook+" "+way, func(t *testing.T) {
				n.stack(t, fmt.Sprintf("required %s hook=%s do=rc=-1", so, c.hook))
				r := do(t)
				want := c.ends[way]
				if r.code != want.code {
					t.Errorf("want exit code %d, got %v", want.code, r)
				}
				doc := n.idle(t)
				if (doc.State == "DRAINED") != want.drain {
					t.Errorf("node %s: %q", doc.State, doc.Reason)
				}
				last := n.last(t)
				if (last.State == "COMPLETED") != (want.code == 0) {
					t.Errorf("the step contradicts the exit code %d: %+v", r.code, last)
				}
				if !want.drain {
					return
				}
				reason := fmt.Sprintf("batch job complete failure: required plugin rude.so: %s() failed with rc=-1, job %d", c.hook, last.JobID)
				if doc.Reason != reason {
					t.Errorf("reason %q, want %q", doc.Reason, reason)
				}
				contains(t, "node status", n.ctl(t, "node", "status").out, "DRAINED", reason)
				if again := n.ctl(t, "run", "true"); again.code != 1 || !strings.Contains(again.err, "drained") {
					t.Errorf("a step on the drained node: %v", again)
				}
				if back := n.ctlRoot(t, "node", "resume"); back.code != 0 {
					t.Fatal(back)
				}
			})
		}
	}
}

// TestRootDrainOverRestart: the reason stays, jobs that run go on.
func TestRootDrainOverRestart(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	p := n.held(t)
	id := n.status(t).Jobs[0].JobID
	so := buildRude(t, n)
	n.stack(t, fmt.Sprintf("required %s hook=user_init do=rc=-1", so))
	script := n.userFile(t, "job.sh", "#!/bin/sh\n", 0o755)
	if r := n.ctl(t, "batch", "-W", script); r.code != 1 {
		t.Errorf("got %v", r)
	}
	n.write(t, "plugstack.conf", "")
	var before nodeDoc
	eventually(t, callTimeout, "the drain", func() error {
		if before = n.status(t); before.State != "DRAINING" || len(before.Jobs) != 1 {
			return fmt.Errorf("node %+v", before)
		}
		return nil
	})
	if !strings.HasPrefix(before.Reason, "batch job complete failure: ") {
		t.Errorf("node %+v", before)
	}
	n.kill9(t)
	n.boot(t)
	if r := n.ctl(t, "run", "--jobid", fmt.Sprint(id), "echo", "ran"); r.out != "ran\n" {
		t.Errorf("a step of a job that runs: %v", r)
	}
	if doc := n.status(t); doc.State != "DRAINING" || doc.Reason != before.Reason {
		t.Errorf("node %+v", doc)
	}
	must(t, p.cmd.Process.Kill())
	n.killOwn(t, p)
	if doc := n.idle(t); doc.State != "DRAINED" || doc.Reason != before.Reason {
		t.Errorf("node %+v", doc)
	}
}

// TestRootQuarantine: a plugin that has crashed twice in a row is left out, or
// drains the node, until it is taken in again or is another file.
func TestRootQuarantine(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "QuarantineAfter=2\n"})
	so, marks := buildRude(t, n), n.markFile(t)
	line := func(flag, do string) string {
		return fmt.Sprintf("%s %s hook=user_init do=%s mark=%s", flag, so, do, marks)
	}
	run := func(want string, code int) result {
		t.Helper()
		r := n.ctl(t, "run", "echo", "ran")
		n.lastEnded(t) // a crash is counted then
		if r.code != code || (code == 0) != (r.out == "ran\n") || !strings.Contains(r.err, want) {
			t.Errorf("want exit code %d and %q, got %v", code, want, r)
		}
		return r
	}
	const crash = `plugin "rude.so": slurm_spank_user_init: killed by SIGSEGV`
	const leftOut = `spank: optional plugin "rude.so" is left out: it crashed 2 times in a row, last in slurm_spank_user_init; stepctl node resume takes it in again`
	state := func() string {
		for _, p := range n.status(t).Plugins {
			if p.Path == so {
				return p.State + " " + p.Problem
			}
		}
		return "not listed"
	}
	// A step without a crash begins anew.
	n.stack(t, line("optional", "segv"))
	run(crash, 1)
	n.stack(t, line("optional", "rc=0"))
	run("", 0)
	n.stack(t, line("optional", "segv"))
	run(crash, 1)
	if s := state(); strings.HasPrefix(s, "quarantined") {
		t.Errorf("after one crash: %s", s)
	}
	run(crash, 1)
	run(leftOut, 0)
	if s := state(); !strings.HasPrefix(s, "quarantined crashed 2 times in a row, last in slurm_spank_user_init") {
		t.Errorf("node status: %s", s)
	}
	n.logs(t, strings.ReplaceAll(leftOut, `"`, `\"`))
	n.kill9(t)
	n.boot(t)
	must(t, os.WriteFile(marks, nil, 0o666))
	run(leftOut, 0)
	if got := readFile(t, marks); got != "" {
		t.Errorf("a plugin in quarantine was called: %q", got)
	}
	if r := n.ctlRoot(t, "node", "resume"); r.code != 0 {
		t.Fatal(r)
	}
	run(crash, 1)
	run(crash, 1)
	run(leftOut, 0)
	// Another file of the name is another plugin.
	b, err := os.ReadFile(so)
	must(t, err)
	must(t, os.WriteFile(so+".new", b, 0o755))
	must(t, os.Rename(so+".new", so))
	run(crash, 1)
	n.stack(t, line("optional", "rc=0"))
	run("", 0)

	n.stack(t, line("required", "segv"))
	run(crash, 1)
	if doc := n.idle(t); doc.State != "IDLE" {
		t.Errorf("after one crash: %+v", doc)
	}
	run(crash, 1)
	if doc := n.idle(t); doc.State != "DRAINED" || doc.Reason != `required plugin "rude.so" crashed 2 times in a row, last in slurm_spank_user_init` {
		t.Errorf("node %s: %q", doc.State, doc.Reason)
	}
	if r := n.ctlRoot(t, "node", "resume"); r.code != 0 {
		t.Fatal(r)
	}
	n.stack(t, line("required", "rc=0"))
	run("", 0)
}
