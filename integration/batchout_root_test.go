package integration

import (
	"fmt"
	"os"
	"path/filepath"
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
	// A FIFO that nobody reads holds nobody.
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
