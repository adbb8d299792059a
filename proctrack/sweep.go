package proctrack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// Steps lists the steps that have a cgroup, running or left by a crash. Names
// that are none of ours are passed over.
func (r *Root) Steps() ([]step.ID, error) {
	ids, _, err := r.scan()
	return ids, err
}

func (r *Root) scan() (ids []step.ID, jobs []uint32, err error) {
	root, err := openGroup(r.dir)
	if gone(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	defer root.close()
	names, err := root.children()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range names {
		job, ok := number(name, "job_")
		if !ok {
			continue
		}
		jobs = append(jobs, job)
		steps, err := stepsOf(root, name)
		if err != nil {
			return nil, nil, err
		}
		for _, s := range steps {
			ids = append(ids, step.ID{Job: job, Step: s})
		}
	}
	return ids, jobs, nil
}

func stepsOf(root *group, name string) ([]uint32, error) {
	job, err := root.child(name)
	if gone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer job.close()
	names, err := job.children()
	if err != nil {
		return nil, err
	}
	var steps []uint32
	for _, name := range names {
		if s, ok := number(name, "step_"); ok {
			steps = append(steps, s)
		}
	}
	return steps, nil
}

// number reads names as jobName and stepName write them, and no others:
// "job_07" and "job_+7" are not ours.
func number(name, prefix string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, prefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, false
	}
	return uint32(n), true
}

// Find tells which step of this root a process belongs to, ok=false if none.
func (r *Root) Find(pid int) (id step.ID, ok bool, err error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "cgroup")
	data, err := os.ReadFile(path)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
		return step.ID{}, false, nil
	}
	if err != nil {
		return step.ID{}, false, fmt.Errorf("cannot read %q: %w", path, err)
	}
	cgroup, ok := parseUnified(data)
	if !ok {
		return step.ID{}, false, nil
	}
	id, ok = idIn(cgroup, filepath.Base(r.dir))
	return id, ok, nil
}

// parseUnified finds the v2 line of /proc/PID/cgroup (cgroups(7)).
func parseUnified(data []byte) (path string, ok bool) {
	for line := range strings.Lines(string(data)) {
		if path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			return path, strings.HasPrefix(path, "/")
		}
	}
	return "", false
}

// idIn finds ROOT/job_N/step_S in a cgroup's path. What comes before depends
// on the reader's cgroup namespace; root, with its hash, does not.
func idIn(cgroup, root string) (step.ID, bool) {
	parts := strings.Split(cgroup, "/")
	for i := 0; i+2 < len(parts); i++ {
		if parts[i] != root {
			continue
		}
		job, ok1 := number(parts[i+1], "job_")
		s, ok2 := number(parts[i+2], "step_")
		return step.ID{Job: job, Step: s}, ok1 && ok2
	}
	return step.ID{}, false
}
