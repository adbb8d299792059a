package proctrack

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

// placeTries bounds how often a place is made again that was removed
// while it was made: the end of an earlier step takes its job's cgroup with it.
const placeTries = 5

// MakeJob makes the cgroups in which the job is limited, unless they exist: in
// the tracker's hierarchy, and in the v1 controllers' hierarchies. MakeStep does it
// as well; it is of use where the job's limits are to hold before any step's
// cgroup exists (a v1 cpuset takes nothing that its children exceed).
func (r *Root) MakeJob(job uint32, v1 []string) error {
	return again(func() error {
		return in(r.dir, func(root *group) error {
			j, tasks, err := root.ensureJob(job)
			if err != nil {
				return err
			}
			j.close()
			tasks.close()
			_, err = r.makeV1(v1, jobName(job))
			return err
		})
	})
}

// again does something that another's removal may disturb.
func again(do func() error) (err error) {
	for range placeTries {
		if err = do(); !gone(err) {
			return err
		}
	}
	return err
}

// ensureJob makes and opens the job's cgroup and its tasks' cgroup.
func (g *group) ensureJob(job uint32) (j, tasks *group, err error) {
	enabled, err := controllers{g}.delegated()
	if err != nil {
		return nil, nil, err
	}
	if j, err = g.ensure(jobName(job)); err != nil {
		return nil, nil, err
	}
	if err = (controllers{j}).enable(enabled); err == nil {
		tasks, err = j.ensure(j.jobTasks())
	}
	if err == nil {
		if err = (controllers{tasks}).enable(enabled); err == nil {
			return j, tasks, nil
		}
		tasks.close()
	}
	j.close()
	return nil, nil, err
}

// MakeStep makes the step's cgroups, the job's where they do not exist yet, and
// the leaf that stepd is born in. fs.ErrExist is in the error when the step has
// one.
func (r *Root) MakeStep(id step.ID, v1 []string) (StepCgroups, error) {
	var out StepCgroups
	err := again(func() (err error) {
		out, err = r.makeStep(id, v1)
		return err
	})
	return out, err
}

func (r *Root) makeStep(id step.ID, v1 []string) (StepCgroups, error) {
	root, err := openGroup(r.dir)
	if err != nil {
		return StepCgroups{}, err
	}
	defer root.close()
	job, tasks, err := root.ensureJob(id.Job)
	if err != nil {
		return StepCgroups{}, err
	}
	defer job.close()
	defer tasks.close()
	name := stepName(id.Step)
	if err := job.makeDaemons(name); err != nil {
		return StepCgroups{}, err
	}
	undo := func() error { return job.removeChild(name, func(*group) error { return nil }) }
	if err := tasks.mkdir(name); err != nil {
		return StepCgroups{}, errors.Join(err, undo())
	}
	dirs, err := r.makeV1(v1, jobName(id.Job), name)
	if err != nil {
		return StepCgroups{}, errors.Join(err, tasks.rmdir(name), undo())
	}
	return StepCgroups{Dir: r.StepDir(id), Tasks: r.TasksDir(id), V1: dirs}, nil
}

// MakeScripts makes a place beside a job's steps, or finds it again: the
// daemons' place of a step id that stands for the job's scripts or the keeper of its pid
// namespace, with no tasks.
func (r *Root) MakeScripts(id step.ID) error {
	return again(func() error {
		return makePath(r.dir, []string{jobName(id.Job), stepName(id.Step), leafStepd}, nil)
	})
}

// makeDaemons makes the cgroup of a step's daemons, with the leaves of stepd and
// of the host.
func (g *group) makeDaemons(name string) error {
	if err := g.mkdirAs(name, modePrivate); err != nil {
		return err
	}
	dir, err := g.child(name)
	if err == nil {
		err = dir.mkdir(leafStepd)
		dir.close()
	}
	if err != nil {
		return errors.Join(err, g.rmdir(name))
	}
	return nil
}

// makeV1 makes a path below the v1 roots of these controllers and returns its
// end, by controller. What exists stays as it is.
func (r *Root) makeV1(controllers []string, path ...string) (map[string]string, error) {
	if len(controllers) == 0 {
		return nil, nil
	}
	dirs := make(map[string]string, len(controllers))
	made := make(map[string]bool)
	for _, c := range controllers {
		root, ok := r.v1[c]
		if !ok {
			return nil, fmt.Errorf("cannot make a cgroup of controller %q: no v1 hierarchy of it can be used here", c)
		}
		dirs[c] = filepath.Join(append([]string{root}, path...)...)
		if made[root] {
			continue
		}
		made[root] = true
		names := append([]string{filepath.Base(root)}, path...)
		if err := makePath(filepath.Dir(root), names, (*group).prepareV1); err != nil {
			return nil, err
		}
	}
	return dirs, nil
}

// makePath makes a path of groups below top; prepare makes each fit for processes.
func makePath(top string, names []string, prepare func(child, parent *group) error) error {
	at, err := openGroup(top)
	if err != nil {
		return err
	}
	defer func() { at.close() }()
	for _, name := range names {
		child, err := at.ensure(name)
		if err != nil {
			return err
		}
		if prepare != nil {
			err = prepare(child, at)
		}
		at.close()
		at = child
		if err != nil {
			return err
		}
	}
	return nil
}

// OpenStepLeaf opens the leaf for stepd, for SysProcAttr.CgroupFD where
// CanBeBornInside said so, else AddStepd moves stepd there. The caller closes
// it after the start.
func (r *Root) OpenStepLeaf(id step.ID) (*os.File, error) {
	g, err := openGroup(filepath.Join(r.StepDir(id), leafStepd))
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(g.fd), g.path), nil
}

// AddStepd moves a stepd, that was not born there, to its leaf.
func (r *Root) AddStepd(id step.ID, pid int) error {
	if pid <= 0 { // the kernel would take 0 for the caller
		return fmt.Errorf("cannot move stepd of step %s: %d is not a process id", id, pid)
	}
	return in(filepath.Join(r.StepDir(id), leafStepd), func(leaf *group) error { return leaf.write("cgroup.procs", strconv.Itoa(pid)) })
}

// CanBeBornInside tries, by a child that never runs a program, whether the
// caller's children can be born in cgroups of the root (CLONE_INTO_CGROUP).
// why says what stands against it: a kernel before 5.7, a seccomp filter, or
// that the cgroup which the caller is in was the target of a cgroup.kill some
// time: its children are then killed at birth by current kernels (seen: 6.18),
// and a noded that does not ask would lose every stepd.
func (r *Root) CanBeBornInside() (ok bool, why string, err error) {
	root, err := openGroup(r.dir)
	if err != nil {
		return false, "", err
	}
	defer root.close()
	if root.v1 {
		return false, "the kernel clones into cgroups of v2 only", nil
	}
	const name = "probe"
	probe, err := root.ensure(name)
	if err != nil {
		return false, "", err
	}
	defer probe.close()
	why, err = probeBirth(probe)
	// A child that was born there has been reaped by now.
	return why == "" && err == nil, why, errors.Join(err, root.rmdir(name))
}

// probeBirth starts an empty path: a child that gets as far as execve(2)
// reports ENOENT, one that was killed reports nothing, which ForkExec takes
// for a success.
func probeBirth(g *group) (why string, err error) {
	pid, err := syscall.ForkExec("", []string{""}, &syscall.ProcAttr{
		Sys: &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: g.fd},
	})
	if errors.Is(err, unix.ENOENT) {
		return "", nil
	}
	if err != nil {
		return fmt.Sprintf("cannot clone into cgroup %q: %v", g.path, err), nil
	}
	var status syscall.WaitStatus
	if _, err := linux.Uninterrupted(func() (int, error) { return syscall.Wait4(pid, &status, 0, nil) }); err != nil {
		return "", fmt.Errorf("cannot wait for process %d: %w", pid, err)
	}
	return fmt.Sprintf("a child cloned into cgroup %q is killed at birth (%v): the caller's own cgroup was killed by cgroup.kill before", g.path, status.Signal()), nil
}

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
	err := in(dir, func(g *group) error { return g.write("cgroup.procs", strconv.Itoa(pid)) })
	if linux.IsGone(err) {
		return fmt.Errorf("it has ended: %w", err)
	}
	return err
}

func enterBelow(dir string, pid int) error {
	if err := in(dir, func(g *group) error { return ensureIn(g, adoptedName) }); err != nil {
		return err
	}
	return enterAs(filepath.Join(dir, adoptedName), pid)
}

// Processes lists what is in the leaf of the step's stepd: of a job's prolog
// and epilog, which have no stepd, that is all there is. It has at most the
// first few, as an error would; a step without a cgroup has none.
func (r *Root) Processes(id step.ID) ([]Survivor, error) {
	var pids []int
	err := within(filepath.Join(r.StepDir(id), leafStepd), func(leaf *group) (err error) { pids, err = living(leaf.pids); return err })
	if err != nil {
		return nil, err
	}
	return newSurvivorsError("", pids, nil).Survivors, nil
}
