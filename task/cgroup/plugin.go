package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
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
	attach  func(dir string, deny []step.Device) error
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
// before PreSetuid. attach refuses devices on v2: device.Attach.
func New(c step.Confinement, tasksV2 string, ranks []int, attach func(dir string, deny []step.Device) error) *Plugin {
	p := &Plugin{confine: c, tasksV2: tasksV2, ranks: ranks, attach: attach}
	for controller, dir := range c.V1 {
		if controller == "pids" {
			continue // the tasks are born there
		}
		p.dirs = append(p.dirs, placement{controller: controller, dir: dir, perTask: PerTask(&c, controller)})
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
	if err := p.denyV2(local); err != nil {
		return fmt.Errorf("cannot limit task %d: %w", rank, err)
	}
	for i := range p.dirs {
		dir, err := p.dirs[i].of(rank)
		if err == nil && p.dirs[i].controller == "devices" {
			err = p.denyV1(local, dir)
		}
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

// denied are the devices that a task alone must not open.
func (p *Plugin) denied(local int) []step.Device {
	if local >= len(p.confine.TaskDeny) {
		return nil
	}
	return p.confine.TaskDeny[local]
}

func (p *Plugin) denyV1(local int, dir string) error {
	for _, d := range p.denied(local) {
		if err := writeFile(filepath.Join(dir, "devices.deny"), d.Rule()); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plugin) denyV2(local int) error {
	deny := p.denied(local)
	if len(deny) == 0 || p.confine.V1["devices"] != "" {
		return nil
	}
	return p.attach(filepath.Join(p.tasksV2, launch.TaskName(p.ranks[local])), deny)
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

// unlimited is from where on a v1 limit is none: the kernel's is the highest
// multiple of a page.
const unlimited = 1 << 62

// ReadLimit reads a memory limit file: a number, "max", or the number that
// stands for none on v1. ok is false for no limit.
func ReadLimit(path string) (bytes uint64, ok bool, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false, fmt.Errorf("cannot read a limit: %w", err)
	}
	bytes, ok, err = parseLimit(string(b))
	if err != nil {
		return 0, false, fmt.Errorf("cannot parse %q: %w", path, err)
	}
	return bytes, ok, nil
}

func parseLimit(s string) (bytes uint64, ok bool, err error) {
	s = strings.TrimSuffix(s, "\n")
	if s == "max" {
		return 0, false, nil
	}
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("%.40q is neither a number nor \"max\"", s)
	}
	return v, v < unlimited, nil
}

// existing is dir, or the nearest directory above it that exists: a directory
// that is made below it will have its files, and its limits.
func existing(dir string) string {
	d := filepath.Clean(dir)
	for d != "/" {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		d = filepath.Dir(d)
	}
	return d
}

// Has reports whether a cgroup has a file, or will have it once it is made. The
// tree's root, which lacks some, is not to be asked.
func Has(dir, file string) bool {
	_, err := os.Stat(filepath.Join(existing(dir), file))
	return err == nil
}

// ParentLimits are the limits of dir and of the cgroups above it, the innermost
// first: of the processes in dir each of them is one. Where a directory has no
// such file, none above it limits what is below: a controller is enabled from the
// root downwards, and the root has no limit.
func ParentLimits(home Home, dir string) ([]step.MemoryLevel, error) {
	file := "memory.max"
	if home == HomeV1 {
		file = "memory.limit_in_bytes"
	}
	var out []step.MemoryLevel
	for d := existing(dir); ; d = filepath.Dir(d) {
		v, ok, err := ReadLimit(filepath.Join(d, file))
		if errors.Is(err, fs.ErrNotExist) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		if ok {
			out = append(out, step.MemoryLevel{Level: "parent", Dir: d, Bytes: &v})
		}
		if d == "/" {
			return out, nil
		}
	}
}

// ReadList reads a cpuset file of dir: the first of names that it has and that
// is not empty. A directory that does not exist yet, or is to be filled yet, will
// have what the one above it has. "" is none.
func ReadList(dir string, names ...string) (string, error) {
	for d := filepath.Clean(dir); ; d = filepath.Dir(d) {
		for _, name := range names {
			b, err := os.ReadFile(filepath.Join(d, name))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", fmt.Errorf("cannot read a cpuset: %w", err)
			}
			if list := strings.TrimSpace(string(b)); list != "" {
				return list, nil
			}
		}
		if d == "/" {
			return "", nil
		}
	}
}

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
func writeFile(path, value string) error { return linux.WriteFile(unix.AT_FDCWD, path, path, value) }

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
