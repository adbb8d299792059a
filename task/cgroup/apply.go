package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

// Apply carries writes out in their order; the directories exist. attach is for
// device programs, nil where there can be none. An error ends it and names
// file, value and what may be wrong; what was written stays, in directories
// that go with the step.
func Apply(writes []step.CgroupWrite, attach func(dir string, deny []step.Device) error) error {
	for _, w := range writes {
		if len(w.Deny) > 0 {
			if attach == nil {
				return fmt.Errorf("internal error: no device program can be attached to %q", w.Path)
			}
			if err := attach(w.Path, w.Deny); err != nil {
				return err
			}
			continue
		}
		if err := writeFile(w.Path, w.Value); err != nil {
			return explain(w, err)
		}
		if filepath.Base(w.Path) == "cpuset.cpus" {
			if err := checkEffective(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeFile writes a cgroup file in one call, as the kernel wants it. All
// directories on the way are root's.
func writeFile(path, value string) error {
	return linux.WriteFile(unix.AT_FDCWD, path, path, value)
}

// explain adds what an errno means for this file: the kernel has one for many
// reasons.
func explain(w step.CgroupWrite, err error) error {
	file := filepath.Base(w.Path)
	why := ""
	switch {
	case errors.Is(err, unix.EBUSY) && strings.HasPrefix(file, "memory."):
		why = "more is in use there already"
	case errors.Is(err, unix.ENOENT) && strings.HasPrefix(file, "memory."):
		why = "the memory controller is not enabled there"
	case errors.Is(err, unix.ENOENT) && strings.HasPrefix(file, "cpuset."):
		why = "the cpuset controller is not enabled there"
	case strings.HasPrefix(file, "cpuset.") && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) || errors.Is(err, unix.EACCES)):
		why = "a number of it does not exist, is offline, or is not the parent's"
	case errors.Is(err, unix.ENOSPC) && strings.HasPrefix(file, "cpuset."):
		why = "processes are in there, and nothing would be left to them"
	}
	if why == "" {
		return fmt.Errorf("cannot limit the %s: %w", w.Level, err)
	}
	return fmt.Errorf("cannot limit the %s: %w (%s)", w.Level, err, why)
}

// checkEffective makes sure that the kernel gives what was written: v2 takes
// CPUs that are offline or not the parent's, and gives others then.
func checkEffective(w step.CgroupWrite) error {
	dir := filepath.Dir(w.Path)
	for _, name := range []string{"cpuset.cpus.effective", "cpuset.effective_cpus"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		got := strings.TrimSpace(string(b))
		if got != w.Value {
			return fmt.Errorf("cannot limit the %s: CPUs %q were written to %q, and the kernel gives %q: some are offline, or not the parent's", w.Level, w.Value, w.Path, got)
		}
		return nil
	}
	return nil
}
