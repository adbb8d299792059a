package proctrack

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"

	"stepd/internal/linux"
)

// adoptedName is the cgroup of adopted processes, below the tasks' cgroup: stepd may
// give the tasks cgroups of their own with controllers, and then a process can be in
// leaves alone.
const adoptedName = "adopted"

// Adopt moves a process that the step has not started among its tasks, in all
// hierarchies of the step: the v1 ones come first, so that nothing of it runs tracked
// and without limits. Its children stay where they are. It is called by root's
// daemon, which has checked whose process it is.
func Adopt(place StepCgroups, pid int) error {
	if pid < 1 { // the kernel takes 0 for the caller
		return fmt.Errorf("cannot adopt process %d: there is none of this number", pid)
	}
	if place.Tasks == "" {
		return fmt.Errorf("cannot adopt process %d: the step has no cgroup for tasks", pid)
	}
	done := make(map[string]bool) // controllers may share a hierarchy
	for _, c := range slices.Sorted(maps.Keys(place.V1)) {
		dir := place.V1[c]
		if done[dir] {
			continue
		}
		done[dir] = true
		if err := enterAs(dir, pid); err != nil {
			return fmt.Errorf("cannot adopt process %d: %w", pid, err)
		}
	}
	if err := enterBelow(place.Tasks, pid); err != nil {
		return fmt.Errorf("cannot adopt process %d: %w", pid, err)
	}
	return nil
}

func enterAs(dir string, pid int) error {
	g, err := openGroup(dir)
	if err != nil {
		return err
	}
	defer g.close()
	err = g.write("cgroup.procs", strconv.Itoa(pid))
	if linux.IsGone(err) {
		return fmt.Errorf("it has ended: %w", err)
	}
	return err
}

func enterBelow(dir string, pid int) error {
	g, err := openGroup(dir)
	if err != nil {
		return err
	}
	defer g.close()
	if err := g.mkdir(adoptedName); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return enterAs(filepath.Join(dir, adoptedName), pid)
}
