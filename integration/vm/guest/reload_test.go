package guest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// limitFiles are those that systemd writes, too, where it thinks a cgroup its
// own.
var limitFiles = []string{
	"cgroup.subtree_control", "cpu.max", "cpu.weight", "cpuset.cpus", "cpuset.mems", "io.weight",
	"memory.high", "memory.low", "memory.max", "memory.min", "memory.oom.group", "memory.swap.max", "pids.max",
}

// places reports where the tasks are, and the limits of every cgroup above them.
func places(t *testing.T, all []*running) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, s := range all {
		for _, pid := range s.pids(t) {
			own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			if err != nil {
				t.Fatal(err)
			}
			path := strings.TrimPrefix(strings.TrimSpace(string(own)), "0::")
			found[fmt.Sprint("pid ", pid)] = path
			for dir := path; dir != "/"; dir = filepath.Dir(dir) {
				for _, name := range limitFiles {
					file := filepath.Join("/sys/fs/cgroup", dir, name)
					if text, err := os.ReadFile(file); err == nil { // not every level has every file
						found[file] = strings.TrimSpace(string(text))
					}
				}
			}
		}
	}
	return found
}

// TestGuestDaemonReload: systemd goes through all its units again while steps
// run, start and end. Steps stay where they are, with the limits they had.
func TestGuestDaemonReload(t *testing.T) {
	configure(t, map[string]string{
		"slurm.conf":  "TaskPlugin=task/affinity,task/cgroup\n",
		"cgroup.conf": "ConstrainRAMSpace=yes\nConstrainSwapSpace=yes\nConstrainCores=yes\n",
	})
	systemctl(t, "start", "noded")
	var all []*running
	for i := range 3 {
		all = append(all, startStep(t, fmt.Sprint("long", i), 2, "--mem=50M"))
	}
	before := places(t, all)
	limited := 0
	for file, value := range before {
		if strings.HasSuffix(file, "/memory.max") && value == strconv.Itoa(50<<20) {
			limited++
		}
	}
	if limited < len(all) {
		t.Errorf("%d cgroups have the limit of %d steps", limited, len(all))
	}
	var load sync.WaitGroup
	for i := range 2 {
		load.Go(func() {
			for range 2 {
				out, err := exec.Command("stepctl", "run", "--uid=nobody", "-D", "/", "-O", "-n", "2", "--mem=20M", "true").CombinedOutput()
				if err != nil || len(out) != 0 {
					t.Errorf("a short step of load %d: %v: %s", i, err, out)
				}
			}
		})
	}
	for range 3 {
		systemctl(t, "daemon-reload")
	}
	load.Wait()
	systemctl(t, "daemon-reload")
	after := places(t, all)
	for what, was := range before {
		if after[what] != was {
			t.Errorf("%s: %q before, %q after", what, was, after[what])
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d facts before, %d after", len(before), len(after))
	}
	for _, s := range all {
		s.known(t)
		s.finish(t)
	}
}
