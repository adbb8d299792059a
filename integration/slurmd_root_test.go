package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// childHost finds the spankhost of noded itself: the slurmd context.
func (n *node) childHost(t testing.TB) int {
	t.Helper()
	pids, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	for _, dir := range pids {
		comm, err := os.ReadFile(dir + "/comm")
		if err != nil || string(comm) != "spankhost\n" {
			continue
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue // gone meanwhile
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(f) > 1 && f[0] != "Z" && f[1] == strconv.Itoa(n.cmd.Process.Pid) {
			pid, err := strconv.Atoi(filepath.Base(dir))
			must(t, err)
			return pid
		}
	}
	return 0
}

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// TestRootSlurmdContext: init at noded's start, slurmd_exit at its stop, in one
// process that is noded's child, as root, whatever becomes of plugstack.conf meanwhile,
// and gone with noded however it ends.
func TestRootSlurmdContext(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	if pid := n.childHost(t); pid != 0 {
		t.Errorf("a host without plugins: %d", pid)
	}
	so, marks := buildClient(t, n), n.markFile(t)
	n.kill9(t)
	n.write(t, "plugstack.conf", fmt.Sprintf("required %s mark=%s\n", so, marks))
	n.boot(t)
	host := n.childHost(t)
	if got := readFile(t, marks); host == 0 || got != "4 init uid=0,0\n" {
		t.Errorf("host %d, marks %q", host, got)
	}
	if r := n.ctl(t, "run", "echo", "ran"); r.out != "ran\n" {
		t.Errorf("got %v", r)
	}
	n.idle(t)
	if strings.Count(readFile(t, marks), "4 ") != 1 {
		t.Errorf("a job has called the slurmd context: %q", readFile(t, marks))
	}
	n.write(t, "plugstack.conf", "") // for the next noded
	must(t, n.cmd.Process.Signal(syscall.SIGTERM))
	<-n.done
	if code := n.cmd.ProcessState.ExitCode(); code != 0 || alive(host) {
		t.Errorf("exit code %d, host alive: %v", code, alive(host))
	}
	if got := readFile(t, marks); !strings.HasSuffix(got, "4 slurmd_exit uid=0,0\n") {
		t.Errorf("marks %q", got)
	}
	n.write(t, "plugstack.conf", fmt.Sprintf("required %s mark=%s\n", so, marks))
	must(t, os.WriteFile(marks, nil, 0o666))
	n.boot(t)
	host = n.childHost(t)
	n.kill9(t)
	eventually(t, goneWithin, "the host's end with noded's", func() error {
		if alive(host) {
			return errors.New("it lives")
		}
		return nil
	})
	if got := readFile(t, marks); got != "4 init uid=0,0\n" {
		t.Errorf("marks %q", got)
	}
	n.boot(t) // it removes what the killed one had
}

// TestRootSlurmdFailures: what a failing plugin does to noded's start and stop
// (traces/slurmd_failures.tsv), and what a crash does.
func TestRootSlurmdFailures(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "HookTimeout=1\n"})
	so, marks := buildClient(t, n), n.markFile(t)
	n.kill9(t)
	other := n.path("other.so")
	must(t, os.Link(so, other))
	type row struct {
		name, stack string
		starts      bool
		says        string // at the start or at the stop
	}
	line := func(flag, hook, do string) string {
		return fmt.Sprintf("%s %s ctx=4 hook=%s do=%s mark=%s\nrequired %s mark=%s\n", flag, so, hook, do, marks, other, marks)
	}
	for _, c := range []row{
		{"required init fails", line("required", "init", "rc=-1"), false, `plugin "client.so": slurm_spank_init: failed with rc=-1`},
		{"required init crashes", line("required", "init", "segv"), false, `plugin "client.so": slurm_spank_init: killed by SIGSEGV`},
		{"required init hangs", line("required", "init", "hang"), false, `plugin "client.so": slurm_spank_init: did not return within 1s`},
		{"required init exits", line("required", "init", "exit"), false, `plugin "client.so": slurm_spank_init: called exit(0)`},
		{"required init closes descriptors", line("required", "init", "closefds"), false, `plugin "client.so": slurm_spank_init: closed descriptors of the process that called it`},
		{"optional init fails", line("optional", "init", "rc=-1"), true, ""},
		{"optional init crashes", line("optional", "init", "abort"), true, `plugin \"client.so\": slurm_spank_init: killed by SIGABRT`},
		{"required is missing", "required /no/such.so\n", false, "plugstack.conf:1: Failed to load plugin /no/such.so. Aborting"},
		{"optional is missing", "optional /no/such.so\nrequired " + other + " mark=" + marks + "\n", true, "Failed to load optional plugin /no/such.so. Ignored"},
		{"required exit fails", line("required", "slurmd_exit", "rc=-1"), true, `plugin \"client.so\": slurm_spank_slurmd_exit: failed with rc=-1`},
		{"required exit hangs", line("required", "slurmd_exit", "hang"), true, `plugin \"client.so\": slurm_spank_slurmd_exit: did not return within 1s`},
		{"required exit crashes", line("required", "slurmd_exit", "segv"), true, `plugin \"client.so\": slurm_spank_slurmd_exit: killed by SIGSEGV`},
		{"optional exit crashes", line("optional", "slurmd_exit", "abort"), true, `plugin \"client.so\": slurm_spank_slurmd_exit: killed by SIGABRT`},
		{"optional exit fails", line("optional", "slurmd_exit", "rc=-1"), true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			must(t, os.WriteFile(marks, nil, 0o666))
			n.write(t, "plugstack.conf", c.stack)
			if !c.starts {
				code, out := runNoded(t, nil, "-f", n.path("slurm.conf"), "--run-dir", n.run, "--spool-dir", n.path("spool"))
				if code != 1 || !strings.Contains(out, c.says) {
					t.Errorf("exit code %d: %s", code, out)
				}
				if _, err := os.Stat(n.socket()); err == nil {
					t.Error("the socket has appeared")
				}
				return
			}
			n.boot(t)
			if r := n.ctlRoot(t, "node", "status"); r.code != 0 {
				t.Error(r)
			}
			must(t, n.cmd.Process.Signal(syscall.SIGTERM))
			<-n.done
			if code := n.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			n.logs(t, c.says)
			if strings.Contains(c.name, "optional init") && !strings.Contains(readFile(t, marks), "4 slurmd_exit") {
				t.Errorf("the second plugin has no exit: %q", readFile(t, marks))
			}
		})
	}
	n.write(t, "plugstack.conf", "")
	n.boot(t)
}

// TestRootSlurmdHostDies: noded goes on, and says so.
func TestRootSlurmdHostDies(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	so, marks := buildClient(t, n), n.markFile(t)
	n.kill9(t)
	n.write(t, "plugstack.conf", fmt.Sprintf("required %s mark=%s\n", so, marks))
	n.boot(t)
	must(t, syscall.Kill(n.childHost(t), syscall.SIGKILL))
	eventually(t, callTimeout, "the fallback", func() error {
		for _, f := range n.status(t).Fallbacks {
			if f.What == "plugins in slurmd context" && strings.Contains(f.Why, "killed by SIGKILL") {
				return nil
			}
		}
		return fmt.Errorf("fallbacks %+v", n.status(t).Fallbacks)
	})
	n.logs(t, "the plugins' slurmd context has ended: spankhost (slurmd context, pid ")
	if r := n.ctl(t, "run", "echo", "ran"); r.out != "ran\n" {
		t.Errorf("got %v", r)
	}
	n.idle(t)
}
