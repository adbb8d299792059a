package proctrack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
)

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
	leaf, err := openGroup(filepath.Join(r.StepDir(id), leafStepd))
	if err != nil {
		return err
	}
	defer leaf.close()
	return leaf.write("cgroup.procs", strconv.Itoa(pid))
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
	err = linux.IgnoringEINTR(func() error {
		_, err := syscall.Wait4(pid, &status, 0, nil)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("cannot wait for process %d: %w", pid, err)
	}
	return fmt.Sprintf("a child cloned into cgroup %q is killed at birth (%v): the caller's own cgroup was killed by cgroup.kill before", g.path, status.Signal()), nil
}
