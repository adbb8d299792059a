package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestRootBatchOutput: what the node and plugins say of a batch job stands in
// its output, where the user looks.
func TestRootBatchOutput(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so := buildRude(t, n)
	out := func() string {
		n.idle(t) // the host writes in there until its end
		b, err := os.ReadFile(filepath.Join(n.wd, "out"))
		must(t, err)
		return string(b)
	}
	script := n.userFile(t, "job.sh", "#!/bin/sh\necho the script; echo its stderr >&2\n", 0o755)
	for _, c := range []struct {
		hook, flag, do string
		args           []string
		want, not      []string
	}{
		{"user_init", "optional", "say", nil, []string{"stepd-vm: error: rude says error\n", "rude says log\n", "rude says stderr\n", "the script\nits stderr\n"}, []string{"says info", "says debug"}},
		{"task_init", "optional", "say", nil, []string{"stepd-vm: error: rude says error\n", "rude says stdout\n", "the script\n"}, nil},
		{"exit", "optional", "say", nil, []string{"the script\nits stderr\n", "stepd-vm: error: rude says error\n", "rude says stderr\n"}, nil},
		{"init", "optional", "say", nil, []string{"the script\n"}, []string{"rude says"}},
		{"user_init", "required", "rc=-1", nil, []string{"stepd-vm: error: spank: required plugin rude.so: user_init() failed with rc=-1\n"}, []string{"the script"}},
		{"task_init", "required", "segv", nil, []string{`stepd-vm: error: plugin "rude.so": slurm_spank_task_init (rank 0): killed by SIGSEGV`}, []string{"the script"}},
		{"none", "required", "", []string{"-e", "err"}, []string{"the script\n"}, []string{"its stderr"}},
	} {
		t.Run(fmt.Sprintf("%s %s %s", c.flag, c.do, c.hook), func(t *testing.T) {
			n.ctlRoot(t, "node", "resume") // a failed batch job may have drained it
			n.stack(t, fmt.Sprintf("%s %s hook=%s do=%s", c.flag, so, c.hook, c.do))
			n.ctl(t, append(append([]string{"batch", "-W", "-o", "out"}, c.args...), script)...)
			contains(t, "output", out(), c.want...)
			for _, not := range c.not {
				if strings.Contains(out(), not) {
					t.Errorf("%q is in the output %q", not, out())
				}
			}
		})
	}
	n.stack(t)
	n.ctlRoot(t, "node", "resume")
	bad := n.userFile(t, "bad.sh", "#!/no/such/interpreter\n", 0o755)
	if r := n.ctl(t, "batch", "-W", "-o", "out", bad); r.code != 2 || !strings.Contains(out(), "stepd-vm: error: execve(): bad interpreter(/no/such/interpreter): No such file or directory") {
		t.Errorf("%v, output %q", r, out())
	}
	// A FIFO without a reader blocks no step.
	fifo := filepath.Join(n.wd, "fifo")
	must(t, command("mkfifo", "-m", "666", fifo))
	if r := n.ctl(t, "batch", "-W", "-o", "fifo", script); r.code == 0 {
		t.Errorf("a FIFO without a reader: %v", r)
	}
	// The file is opened as the user.
	if r := n.ctl(t, "batch", "-W", "-o", n.path("not-mine"), script); r.code == 0 || !strings.Contains(r.err, "Could not open stdout file") {
		t.Errorf("a file where the user may not write: %v", r)
	}
}

// TestRootBatchOpenMode: a batch job's output is truncated, or appended to with
// --open-mode=append, and says when the job was cancelled.
func TestRootBatchOpenMode(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	ok := func(args ...string) {
		t.Helper()
		if r := n.ctl(t, args...); r.code != 0 {
			t.Errorf("%q: %v", args, r)
		}
	}
	out := func() string {
		n.idle(t)
		return readFile(t, filepath.Join(n.wd, "out"))
	}
	ok("batch", "-W", "-o", "out", "--wrap=echo first")
	ok("batch", "-W", "-o", "out", "--open-mode=append", "--wrap=echo second")
	if got := out(); got != "first\nsecond\n" {
		t.Errorf("appended: %q", got)
	}
	ok("batch", "-W", "-o", "out", "--open-mode=truncate", "--wrap=echo third")
	if got := out(); got != "third\n" {
		t.Errorf("truncated: %q", got)
	}
	ok("batch", "-o", "out", "--open-mode=append", "--wrap=touch up; exec sleep 1000")
	eventually(t, callTimeout, "the script", func() error { _, err := os.Stat(filepath.Join(n.wd, "up")); return err })
	ok("cancel", "4")
	if got := out(); !regexp.MustCompile(`^third\n.*JOB 4 ON vm CANCELLED AT \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d \*\*\*\n$`).MatchString(got) {
		t.Errorf("cancelled: %q", got)
	}
	ok("batch", "-o", "out", "--wrap=touch up2; exec sleep 1000")
	eventually(t, callTimeout, "the script", func() error { _, err := os.Stat(filepath.Join(n.wd, "up2")); return err })
	ok("cancel", "5")
	if got := out(); !regexp.MustCompile(`^[^\n]*JOB 5 ON vm CANCELLED AT [^\n]*\n$`).MatchString(got) {
		t.Errorf("truncated, then cancelled: %q", got)
	}
	n.checkClean(t)
}
