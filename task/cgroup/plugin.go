package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"stepd/step"
	"stepd/step/launch"
)

// Plugin puts the tasks of one step where noded has limited it: into the v1
// hierarchies. On cgroup v2 the tracker has put them there already. Make it with
// New; its methods implement task.Plugin.
type Plugin struct {
	confine step.Confinement
	tasksV2 string // the step's on v2, "" without
	ranks   []int  // by local id
	dirs    []placement
}

// placement is a v1 directory of the step.
type placement struct {
	controller, dir string
	perTask         bool
	made            []string // directories of tasks, absolute
}

// New makes the plugin of a step. tasksV2 is step.Proctrack.Tasks, "" without a
// v2 tree, ranks are the ranks of its tasks here by local id. Nothing is touched
// before PreSetuid.
func New(c step.Confinement, tasksV2 string, ranks []int) *Plugin {
	p := &Plugin{confine: c, tasksV2: tasksV2, ranks: ranks}
	for controller, dir := range c.V1 {
		p.dirs = append(p.dirs, placement{controller: controller, dir: dir, perTask: c.PerTask && perTaskV1(controller)})
	}
	slices.SortFunc(p.dirs, func(a, b placement) int {
		// memory last: what the kernel charges on the way is the step's.
		return order(a.controller) - order(b.controller)
	})
	return p
}

func order(controller string) int {
	return slices.Index([]string{"cpuset", "devices", "cpuacct", "blkio", "memory"}, controller)
}

// Name is "task/cgroup".
func (p *Plugin) Name() string { return "task/cgroup" }

// PreSetuid makes sure that the directories exist, which noded has made.
func (p *Plugin) PreSetuid() error {
	for _, d := range p.dirs {
		if _, err := os.Stat(d.dir); err != nil {
			return fmt.Errorf("cannot find the step's %s cgroup: %w", d.controller, err)
		}
	}
	return nil
}

// PreLaunch has nothing to add.
func (p *Plugin) PreLaunch(*launch.Launch) error { return nil }

// PreLaunchPriv moves the task, which waits at the gate, into each hierarchy.
func (p *Plugin) PreLaunchPriv(local, pid int) error {
	rank := p.ranks[local]
	if p.confine.OOMGroup == step.OOMGroupTask && p.tasksV2 != "" && p.confine.V1["memory"] == "" {
		if err := writeFile(filepath.Join(p.tasksV2, launch.TaskName(rank), "memory.oom.group"), "1"); err != nil {
			return fmt.Errorf("cannot limit task %d: %w", rank, err)
		}
	}
	for i := range p.dirs {
		dir, err := p.dirs[i].of(rank)
		if err != nil {
			return fmt.Errorf("cannot limit task %d: %w", rank, err)
		}
		if err := writeFile(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			if errors.Is(err, unix.ESRCH) {
				return nil // it has ended already; its end is told elsewhere
			}
			return fmt.Errorf("cannot limit task %d: %w", rank, err)
		}
	}
	return nil
}

// of returns the directory of a rank, which it makes.
func (d *placement) of(rank int) (string, error) {
	if !d.perTask {
		return d.dir, nil
	}
	dir := filepath.Join(d.dir, launch.TaskName(rank))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("cannot make cgroup: %w", err)
	}
	d.made = append(d.made, dir)
	return dir, nil
}

// PostTerm has nothing to do.
func (p *Plugin) PostTerm(launch.TaskEnd) {}

// PostStep removes the tasks' directories, in which nothing is left.
func (p *Plugin) PostStep() error {
	var errs []error
	for i := range p.dirs {
		for _, dir := range p.dirs[i].made {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("cannot remove cgroup %q: %w", dir, err))
			}
		}
		p.dirs[i].made = nil
	}
	return errors.Join(errs...)
}
