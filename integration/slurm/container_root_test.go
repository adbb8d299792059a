package slurm

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// TestRootContainers: the commands of a container's end run as the user and for each task, what
// is no bundle is refused, a runtime that is missing, deaf or hangs ends with its step, and
// nothing of any is left.
func TestRootContainers(t *testing.T) {
	t.Parallel()
	onReleases(t, containers)
}

func containers(t *testing.T, release string) {
	site := ofRelease("oci", release)
	site.Users = []string{"alice", "bob"}
	c := startSite(t, site)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	run := func(user, script string) string {
		out, err := c.Command(ctx, user, "timeout", "60", "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v", script, err)
		}
		return string(out)
	}
	answer := func(query string) {
		t.Helper()
		run("root", "echo '"+query+"' > $DIR/oci.query; : > $DIR/oci.log; chmod 666 $DIR/oci.log")
	}
	ended := func(name string, want ...string) {
		t.Helper()
		text, err := os.ReadFile(c.Path("oci.log"))
		if got := strings.Fields(string(text)); err != nil || len(got) != len(strings.Fields(strings.Join(want, " "))) {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
		for _, line := range want {
			if !strings.Contains(string(text), line+"\n") {
				t.Errorf("%s: no %q in\n%s", name, line, text)
			}
		}
	}
	run("alice", `mkdir b; echo '{"process": {"env": []}, "root": {"path": "/"}}' > b/config.json`)

	answer(`echo "{\"status\": \"running\"}"`)
	if out := run("alice", "srun -Q -n2 --container=b /bin/true | grep ^run | sort"); out != "run n1.alice 0 as alice in a folder of alice\nrun n1.alice 1 as alice in a folder of alice\n" {
		t.Errorf("two tasks: %q", out)
	}
	ended("two tasks", "query 0.0 alice", "kill 0.0 alice", "delete 0.0 alice", "query 0.1 alice", "kill 0.1 alice", "delete 0.1 alice")

	answer("exec sleep 70")
	began := time.Now()
	run("alice", "srun -Q --container=b /bin/true")
	if took := time.Since(began); took > 55*time.Second { // it sleeps 70 s
		t.Errorf("a query that hangs held the step up for %v", took)
	}
	ended("a query that hangs", "query 0.0 alice")

	answer("exit 1")
	run("alice", "srun -Q --container=b /bin/sh -c 'trap : TERM; >$DIR/work/alice/up; while :; do sleep 1; done' >/dev/null 2>&1 & until [ -e up ]; do sleep .05; done; scancel -u alice; wait")

	for _, tc := range []struct{ name, make, said string }{
		{"1 GB", "truncate -s 1G no/config.json", "Invalid argument"},
		{"a FIFO", "mkfifo no/config.json", "Invalid argument"},
		{"another user's file", "ln -s $DIR/work/bob/secret no/config.json", "Permission denied"},
		{"no JSON", "echo { > no/config.json", "Invalid argument"},
	} {
		run("bob", "echo '{}' > secret; chmod 600 secret")
		if out := run("alice", "rm -rf no; mkdir no; "+tc.make+"; ! srun --container=no true 2>&1"); !strings.Contains(out, "Task launch for StepId=") || !strings.Contains(out, tc.said) {
			t.Errorf("%s: %s", tc.name, out)
		}
	}
	run("root", "mv $DIR/runtime $DIR/gone")
	if out := run("alice", "srun --container=b true 2>&1; echo rc $?"); !strings.Contains(out, "rc 127") {
		t.Errorf("no runtime: %s", out)
	}
	if out := run("root", "i=0; while ls -d $DIR/spool/oci* 2>/dev/null && [ $i -lt 100 ]; do sleep .05; i=$((i+1)); done > /dev/null; ls -d $DIR/spool/oci* 2>/dev/null; pgrep -u alice sleep || true"); out != "" {
		t.Errorf("left: %s", out)
	}
}
