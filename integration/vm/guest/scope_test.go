package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

const (
	scopeUnit = "stepd.scope"
	scopeDir  = "/sys/fs/cgroup/system.slice/stepd.scope"
)

// keeper is the process that keeps the scope.
func keeper(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(scopeDir + "/keeper/cgroup.procs")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatalf("the keeper's cgroup has %q", text)
	}
	return pid
}

// inScope fails the test unless the tasks are in the scope.
func (s *running) inScope(t *testing.T) {
	t.Helper()
	for _, pid := range s.pids(t) {
		own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.HasPrefix(string(own), "0::/system.slice/stepd.scope/stepd-") {
			t.Errorf("task %d is in %q (%v), not in %s", pid, own, err, scopeUnit)
		}
	}
}

// TestGuestScope: the steps' scope has every controller, outlives noded while it
// has steps, is kept by noded while it has none, and goes with both.
func TestGuestScope(t *testing.T) {
	startUnit(t)
	for _, level := range []string{"", "/stepd-*"} {
		dirs, _ := filepath.Glob(scopeDir + level) // the pattern is good
		if len(dirs) != 1 {
			t.Fatalf("%s%s is %q", scopeDir, level, dirs)
		}
		text, err := os.ReadFile(dirs[0] + "/cgroup.subtree_control")
		if got := strings.TrimSpace(string(text)); err != nil || got != "cpuset cpu io memory pids" {
			t.Errorf("%s gives its children %q (%v)", dirs[0], got, err)
		}
	}
	// The steps end before what they need: units are stopped in the reverse order.
	after := strings.Fields(systemctl(t, "show", "--value", "--property=After", scopeUnit))
	for _, unit := range []string{"remote-fs.target", "network.target", "network-online.target", "nss-user-lookup.target"} {
		if !slices.Contains(after, unit) {
			t.Errorf("%s is not after %s: %q", scopeUnit, unit, after)
		}
	}
	if got := systemctl(t, "show", "--value", "--property=RequiresMountsFor", scopeUnit); got != "/var/spool/stepd" {
		t.Errorf("%s requires the mounts of %q", scopeUnit, got)
	}
	s := startStep(t, "a", 2)
	s.inScope(t)
	for _, verb := range []string{"stop", "start"} {
		systemctl(t, verb, "noded")
		if got := systemctl(t, "is-active", scopeUnit); got != "active" {
			t.Errorf("%s is %q after %s of noded", scopeUnit, got, verb)
		}
		s.alive(t)
	}
	systemctl(t, "daemon-reload")
	s.known(t)
	later := startStep(t, "b", 1, "--overcommit")
	later.inScope(t)
	s.finish(t)
	later.finish(t)
	if err := syscall.Kill(keeper(t), 0); err != nil {
		t.Errorf("the keeper of an empty scope: %v", err)
	}
	systemctl(t, "stop", "noded")
	eventually(t, "the end of the scope", func() error {
		if out, err := exec.Command("systemctl", "is-active", scopeUnit).CombinedOutput(); err == nil {
			return fmt.Errorf("it is %s", out)
		}
		_, err := os.Stat(scopeDir)
		if err == nil {
			return fmt.Errorf("%s is there", scopeDir)
		}
		return nil
	})
}

// TestGuestScopeAgain: a scope that goes, with what was in it, is made again.
func TestGuestScopeAgain(t *testing.T) {
	startUnit(t)
	for name, end := range map[string]func(){
		"by an administrator": func() { systemctl(t, "stop", scopeUnit) },
		"with its keeper": func() {
			if err := syscall.Kill(keeper(t), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the end of the scope", func() error {
				if _, err := os.Stat(scopeDir); err == nil {
					return fmt.Errorf("%s is there", scopeDir)
				}
				return nil
			})
		},
	} {
		end()
		s := startStep(t, "after "+name, 1)
		s.inScope(t)
		s.finish(t)
	}
	// Who stops it ends the steps: they are told so.
	s := startStep(t, "stopped", 1)
	systemctl(t, "stop", scopeUnit)
	<-s.ended
	if code := s.client.ProcessState.ExitCode(); code == 0 {
		t.Errorf("a step whose scope was stopped ended with code 0: %s", &s.out)
	}
}

// TestGuestLadder: what a node on systemd makes of less than a scope, and that it
// says so.
func TestGuestLadder(t *testing.T) {
	for _, tc := range []struct {
		name, conf, dropIn string
		tracker, cgroup    string // of a task
		fallback           string // "" none
	}{
		{name: "another slice", conf: "CgroupSlice=jobs.slice\nEnableControllers=yes\n", tracker: "cgroup/v2", cgroup: "0::/jobs.slice/stepd.scope/stepd-"},
		{name: "no D-Bus", dropIn: "InaccessiblePaths=/run/dbus /run/systemd/private\n", tracker: "cgroup/v2", cgroup: "0::/stepd-", fallback: "scope of systemd"},
		{name: "read-only", dropIn: "ProtectControlGroups=yes\n", tracker: "linuxproc", cgroup: "0::/system.slice/noded.service", fallback: "read-only file system"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			configure(t, map[string]string{"slurm.conf": "", "cgroup.conf": tc.conf})
			const unit = "/run/systemd/system/noded.service.d"
			t.Cleanup(func() { // before the unit is started once more
				os.RemoveAll(unit)
				systemctl(t, "daemon-reload")
			})
			if err := errors.Join(os.MkdirAll(unit, 0o755), os.WriteFile(unit+"/test.conf", []byte("[Service]\n"+tc.dropIn), 0o644)); err != nil {
				t.Fatal(err)
			}
			systemctl(t, "daemon-reload")
			systemctl(t, "start", "noded")
			out, err := exec.Command("stepctl", "node", "status", "--json").CombinedOutput()
			var doc struct {
				Node struct {
					Proctrack string
					Fallbacks []struct{ What, Why string }
				}
			}
			if err = errors.Join(err, json.Unmarshal(out, &doc)); err != nil {
				t.Fatalf("node status: %v: %s", err, out)
			}
			n := doc.Node
			if n.Proctrack != tc.tracker || (tc.fallback == "") != (len(n.Fallbacks) == 0) {
				t.Errorf("node status: %s", out)
			}
			if tc.fallback != "" && !strings.Contains(fmt.Sprint(n.Fallbacks), tc.fallback) {
				t.Errorf("fallbacks %+v, want %q", n.Fallbacks, tc.fallback)
			}
			out, err = exec.Command("stepctl", "run", "--uid=nobody", "-D", "/", "cat", "/proc/self/cgroup").CombinedOutput()
			if err != nil || !strings.HasPrefix(string(out), tc.cgroup) {
				t.Errorf("a task is in %q (%v), want %q", out, err, tc.cgroup)
			}
		})
	}
}

// TestGuestNoScope: a site that has noded keep off systemd gets the steps below
// the unit's own cgroup. noded's processes are in there, so that it can give no
// controller to the steps; and it is not to try, for half of one makes the
// cgroups unfit for processes.
func TestGuestNoScope(t *testing.T) {
	configure(t, map[string]string{"slurm.conf": "ClusterName=guest\n", "cgroup.conf": "IgnoreSystemd=yes\n"})
	systemctl(t, "start", "noded")
	if _, err := os.Stat(scopeDir); err == nil {
		t.Errorf("%s is there with IgnoreSystemd=yes", scopeDir)
	}
	s := startStep(t, "a", 2)
	for _, pid := range s.pids(t) {
		if own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err != nil || !strings.HasPrefix(string(own), "0::/stepd-") {
			t.Errorf("task %d is in %q (%v)", pid, own, err)
		}
	}
	for range 2 { // the second start finds the cgroups of the first
		systemctl(t, "restart", "noded")
		s.known(t)
	}
	startStep(t, "b", 1).finish(t)
	s.finish(t)
}
