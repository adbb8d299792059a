package proctrack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"stepd/step/launch"
)

// Escaped finds living processes of the step that are in none of its cgroups:
// of tasks, and of the descendants of the caller, stepd, to which all orphans of
// the step come (PR_SET_CHILD_SUBREAPER).
func (c *Cgroup) Escaped(tasks []int) ([]launch.Escape, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.tasks == nil {
		return nil, nil
	}
	below, err := descendants(os.Getpid())
	if err != nil {
		return nil, err
	}
	var out []launch.Escape
	seen := make(map[int]bool)
	for _, pid := range append(append([]int(nil), tasks...), below...) {
		if seen[pid] {
			continue
		}
		seen[pid] = true
		e, ok, err := c.escape(pid)
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, e)
		}
	}
	return out, nil
}

// escape looks at one process; most are where they belong, which costs one read.
func (c *Cgroup) escape(pid int) (launch.Escape, bool, error) {
	at, ok, err := cgroupOf(pid, c.tasks.v1)
	if err != nil || !ok || c.owns(at) {
		return launch.Escape{}, false, err
	}
	// It may have ended, and its number may be another's by now.
	living, err := livingPIDs([]int{pid})
	if err != nil || len(living) == 0 {
		return launch.Escape{}, false, err
	}
	comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "comm"))
	if noProcess(err) {
		return launch.Escape{}, false, nil
	}
	return launch.Escape{PID: pid, Comm: strings.TrimSuffix(string(comm), "\n"), Cgroup: at}, err == nil, err
}

// owns reports whether a path of /proc/PID/cgroup is one of the step's: below
// ROOT/job_N/step_S or ROOT/job_N/tasks/step_S. What comes before depends on the
// cgroup namespace.
func (c *Cgroup) owns(path string) bool {
	path = strings.TrimSuffix(path, " (deleted)") + "/"
	return strings.Contains(path, lastOf(c.cfg.Dir, 3)) || strings.Contains(path, lastOf(c.cfg.Tasks, 4))
}

// lastOf is the end of a path, n names long, between slashes.
func lastOf(path string, n int) string {
	names := strings.Split(path, "/")
	return "/" + strings.Join(names[max(0, len(names)-n):], "/") + "/"
}

// cgroupOf reads where a process is: in v2, or in v1's freezer.
func cgroupOf(pid int, v1 bool) (path string, ok bool, err error) {
	file := filepath.Join("/proc", strconv.Itoa(pid), "cgroup")
	data, err := os.ReadFile(file)
	if noProcess(err) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("cannot read %q: %w", file, err)
	}
	if path, ok = cgroupIn(data, v1); !ok {
		return "", false, errors.New("cannot find the cgroup of process " + strconv.Itoa(pid) + ": " + file + " does not tell")
	}
	return path, true, nil
}

// cgroupIn finds one hierarchy in /proc/PID/cgroup (cgroups(7)).
func cgroupIn(data []byte, v1 bool) (path string, ok bool) {
	for line := range strings.Lines(string(data)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			continue
		}
		if (!v1 && fields[0] == "0" && fields[1] == "") || (v1 && fields[1] == "freezer") {
			return fields[2], true
		}
	}
	return "", false
}
