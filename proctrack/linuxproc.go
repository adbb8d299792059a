package proctrack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step/launch"
)

// LinuxProc tracks a step by descent, where there is no cgroup to be had:
// stepd is a subreaper, so whatever the step's processes do, they stay
// descendants of stepd. What it cannot do as well as Cgroup:
//
//   - processes that plugins fork in the host count as tasks;
//   - Freeze is SIGSTOP, which the tasks' parents see and users can undo;
//   - when stepd is killed, the descent is lost (see KillSession).
type LinuxProc struct {
	noCgroup
	stepd  int
	reaper Reaper

	mu   sync.Mutex
	host int // guarded by mu; 0 before EvictHost
	// spared serve the tasks and are none.
	spared []int // guarded by mu
}

// noCgroup is the part of a tracker that is about cgroups, where there are none.
type noCgroup struct{}

// HostCgroup is never there.
func (noCgroup) HostCgroup() (fd int, inside bool) { return -1, false }

// Helpers is nil: what plugins fork in the host is one of the tasks by descent, and of
// the host's own process group.
func (noCgroup) Helpers() (*os.File, error) { return nil, nil }

// Escaped is nothing: there is no cgroup to be moved out of.
func (noCgroup) Escaped([]int) ([]launch.Escape, error) { return nil, nil }

// NewLinuxProc returns a tracker for the descendants of the process stepd, the
// caller itself, whose children reaper reaps.
func NewLinuxProc(stepd int, reaper Reaper) *LinuxProc {
	return &LinuxProc{stepd: stepd, reaper: reaper}
}

// Create makes the calling process a subreaper.
func (l *LinuxProc) Create() error {
	if l.stepd != os.Getpid() {
		return fmt.Errorf("internal error: linuxproc tracks process %d from process %d", l.stepd, os.Getpid())
	}
	pid := strconv.Itoa(l.stepd)
	path := filepath.Join("/proc", pid, "task", pid, "children")
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("cannot track processes by descent: %w (the kernel needs CONFIG_PROC_CHILDREN)", err)
	}
	return linux.SetSubreaper()
}

// Add has nothing to do: a process of the step is tracked by its descent.
func (l *LinuxProc) Add(rank, pid int) error { return nil }

// EvictHost makes PIDs, Signal, Kill and Freeze spare the host.
func (l *LinuxProc) EvictHost(pid int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.host = pid
	return nil
}

// Spare makes PIDs, Signal, Kill and Freeze spare a child of stepd that is no task,
// as EvictHost does the host. It may have ended.
func (l *LinuxProc) Spare(pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spared = append(l.spared, pid)
}

// PIDs lists stepd's descendants; zombies and the evicted host are left out.
func (l *LinuxProc) PIDs() ([]int, error) { return living(l.list) }

// list may hold zombies.
func (l *LinuxProc) list() ([]int, error) {
	l.mu.Lock()
	not := append([]int{l.host}, l.spared...)
	l.mu.Unlock()
	pids, err := descendants(l.stepd)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(not, pid) }), nil
}

// Signal sends sig to every process that PIDs lists.
func (l *LinuxProc) Signal(sig syscall.Signal) error {
	pids, err := l.list()
	if err != nil {
		return err
	}
	return signalEach(pids, sig, l.list)
}

// Kill kills every process that PIDs lists and waits for its end. The error is
// a *SurvivorsError when ctx ends first.
func (l *LinuxProc) Kill(ctx context.Context) error {
	return hunt(ctx, fmt.Sprintf("the tasks of stepd %d", l.stepd), l.list)
}

// Freeze stops the tasks by SIGSTOP. It does not wait.
func (l *LinuxProc) Freeze(context.Context) error { return l.Signal(unix.SIGSTOP) }

// Thaw continues the tasks.
func (l *LinuxProc) Thaw() error { return l.Signal(unix.SIGCONT) }

// Destroy kills every descendant of stepd, the host and its helpers included,
// and waits until the reaper has none left to reap: only that proves that no
// descendant is left, however fast they fork.
func (l *LinuxProc) Destroy(ctx context.Context) error {
	what := fmt.Sprintf("the step of stepd %d", l.stepd)
	list := func() ([]int, error) { return descendants(l.stepd) }
	if err := hunt(ctx, what, list); err != nil {
		return err
	}
	if l.reaper == nil {
		return errors.New("internal error: linuxproc has no reaper")
	}
	select {
	case <-l.reaper.NoChildren():
		return nil
	case <-ctx.Done():
	}
	left, err := list()
	if err != nil {
		return err
	}
	return newSurvivorsError(what, left, context.Cause(ctx))
}
