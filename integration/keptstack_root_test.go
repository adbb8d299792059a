package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestRootKeptStack: a job keeps the plugin stack with which it began, for a required and an
// optional plugin, in the local and remote context of its further steps and in job_epilog, whatever
// becomes of plugstack.conf, and over a restart of noded. The node is not drained, and noded says
// once that jobs keep their stack. Jobs that begin later have the new one.
func TestRootKeptStack(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := n.path("environ.so")
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/environ.c", "-ldl", "-o", so)
	dirs := []string{n.path("required"), n.path("optional"), n.path("later")}
	empty := func() {
		for _, dir := range dirs {
			must(t, os.RemoveAll(dir))
			must(t, os.Mkdir(dir, 0o777))
			must(t, os.Chmod(dir, 0o777))
		}
	}
	const says = "1 of the running jobs began with another one, which their steps and epilogs keep"
	script := n.userFile(t, "job.sh", "#!/bin/sh\ntouch begun\nwhile [ ! -e goon ]; do sleep 0.05; done\n"+n.bin+" run true && rm begun goon\n", 0o755)
	for _, edit := range []struct {
		name    string
		lines   []string
		restart bool
		refused string // what a job that begins now is told, "" where it runs
	}{
		{name: "another plugin", lines: []string{"required " + so + " " + dirs[2]}},
		{name: "no plugin"},
		{name: "a required plugin that is missing", lines: []string{"required /no/such.so"}, refused: "Failed to load plugin /no/such.so"},
		{name: "an include loop", lines: []string{"include plugstack.conf"}, refused: "an include loop"},
		// With a required one that is missing noded does not start, as slurmd.
		{name: "no plugin, and a restart", restart: true},
	} {
		t.Run(edit.name, func(t *testing.T) {
			empty()
			n.stack(t, "required "+so+" "+dirs[0], "optional "+so+" "+dirs[1])
			if r := n.ctl(t, "batch", "-o", "out", script); r.code != 0 {
				t.Fatal(r)
			}
			eventually(t, callTimeout, "the job's script", func() error { _, err := os.Stat(n.wd + "/begun"); return err })
			job := fmt.Sprint(n.ps(t)[0].JobID)
			before := strings.Count(n.wholeLog(t), says)
			empty()
			n.stack(t, edit.lines...)
			if edit.restart {
				n.kill9(t)
				n.boot(t)
				before = 0
			}
			if r := n.ctl(t, "run", "--overlap", "true"); (r.code == 0) != (edit.refused == "") || !strings.Contains(r.err, edit.refused) {
				t.Errorf("a job that begins now: %v, want %q", r, edit.refused)
			}
			if r := n.ctl(t, "run", "--overlap", "--jobid", job, "true"); r.code != 0 || r.err != "" {
				t.Errorf("a further step, from outside of the job: %v", r)
			}
			n.userFile(t, "goon", "", 0o644)
			n.idle(t)
			if rec := n.show(t, job+".batch"); rec.State != "COMPLETED" {
				t.Errorf("the job: %s, %s: %s", rec.State, rec.Reason, readFile(t, n.wd+"/out"))
			}
			for _, dir := range dirs[:2] {
				for _, hook := range []string{"init.1", "local_user_init.1", "exit.1", "init.2", "task_init.2", "exit.2", "job_epilog.5"} {
					if _, err := os.Stat(dir + "/" + hook); err != nil {
						t.Errorf("not called in the job's stack: %v", err)
					}
				}
			}
			if _, err := os.Stat(dirs[2] + "/task_init.2"); (err == nil) != (edit.name == "another plugin") {
				t.Errorf("the new stack, for the job that began later: %v", err)
			}
			if got := strings.Count(n.wholeLog(t), says); got != before+1 {
				t.Errorf("noded has said %q %d times, want once: %s", says, got-before, n.log)
			}
			if doc := n.status(t); doc.State != "IDLE" {
				t.Errorf("the node is %s: %s", doc.State, doc.Reason)
			}
		})
	}
}
