package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRootUserHarmsNobody: what one user sends to plugins, prolog and epilog
// fails no other user's jobs: the node is not drained, no plugin is left out, and
// the hooks of the jobs that follow are called.
func TestRootUserHarmsNobody(t *testing.T) {
	n := startNode(t, site{Stepd: "QuarantineAfter=1\n", Slurm: "KillWait=1\nProlog=/bin/true\nEpilog=/bin/true\n"})
	rude, client, marks := buildRude(t, n), buildClient(t, n), n.markFile(t)
	healthy := func(what string) {
		t.Helper()
		if r := n.ctlRoot(t, "node", "status"); strings.Contains(r.out, "DRAIN") || strings.Contains(r.out, "quarantined") {
			t.Errorf("%s: %v", what, r)
		}
		must(t, os.Truncate(marks, 0))
		if r := n.do(t, call{args: []string{"run", "echo", "ran"}, uid: bob.uid}); r.code != 0 || r.out != "ran\n" || r.err != "" {
			t.Errorf("the next job after %s: %v", what, r)
		}
		eventually(t, callTimeout, "the hooks of prolog and epilog", func() error {
			if got := readFile(t, marks); !strings.Contains(got, "5 job_prolog") || !strings.Contains(got, "5 job_epilog") {
				return fmt.Errorf("got %q", got)
			}
			return nil
		})
	}
	plain := fmt.Sprintf("required %s mark=%s", client, marks)
	n.stack(t, plain)
	healthy("nothing")

	// More options, and more bytes, than anybody needs: refused as the user's.
	// The shell's own limits keep such an environment from stepctl's arguments,
	// so the script's lines carry it.
	long := func(n int) string {
		var b strings.Builder
		b.WriteString("#!/bin/sh\n")
		for range n {
			b.WriteString("#SBATCH --both=" + strings.Repeat("v", 100<<10) + "\n")
		}
		return b.String() + "true\n"
	}
	if r := n.ctl(t, "batch", "-W", "-o", "/dev/null", n.userFile(t, "long.sh", long(20), 0o755)); r.code != 0 {
		t.Errorf("an option that is given often: %v", r)
	}
	healthy("long options")
	var env []string
	for i := range 1100 {
		env = append(env, fmt.Sprintf("_SLURM_SPANK_OPTION_x%d=", i))
	}
	if r := n.do(t, call{args: []string{"run", "true"}, env: env}); r.code != 1 || !strings.Contains(r.err, "there are more than 1024") {
		t.Errorf("1,100 options: %v", r)
	}
	healthy("1,100 options")
	if r := n.ctl(t, "run", "--both=(null)", "true"); r.code != 0 {
		t.Errorf("a value that looks like none: %v", r)
	}
	healthy(`"(null)"`)

	// A task is the user's process already in task_init.
	n.stack(t, plain, fmt.Sprintf("required %s hook=task_init do=hang", rude))
	p := n.start(t, call{args: []string{"run", "true"}})
	eventually(t, callTimeout, "the task in task_init", func() error {
		out, err := exec.Command("pgrep", "-u", fmt.Sprint(alice.uid), "spankhost").Output()
		for _, pid := range strings.Fields(string(out)) {
			// The client has a spankhost as well, which is the user's from the start.
			if title, terr := os.ReadFile(filepath.Join("/proc", pid, "cmdline")); terr != nil || !strings.HasPrefix(string(title), "spankhost: [") {
				continue
			}
			status, rerr := os.ReadFile(filepath.Join("/proc", pid, "status"))
			if rerr == nil && statusField(string(status), "Uid") == fmt.Sprintf("%d %[1]d %[1]d %[1]d", alice.uid) && statusField(string(status), "SigBlk") == "0000000000000000" {
				return command("kill", "-SEGV", pid)
			}
		}
		return fmt.Errorf("not there yet: %v", err)
	})
	if r := p.wait(t); r.code != 1 || !strings.Contains(r.err, `slurm_spank_task_init (rank 0): killed by SIGSEGV`) {
		t.Errorf("a task that its user has killed: %v", r)
	}
	n.stack(t, plain)
	healthy("a task that its user has killed")
}
