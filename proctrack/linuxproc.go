package proctrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

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
	if err := CheckDescent(); err != nil {
		return err
	}
	return linux.SetSubreaper()
}

// CheckDescent returns why this kernel cannot track processes by descent, nil where it can.
func CheckDescent() error {
	pid := strconv.Itoa(os.Getpid())
	if _, err := os.Stat(filepath.Join("/proc", pid, "task", pid, "children")); err != nil {
		return fmt.Errorf("cannot track processes by descent: %w (the kernel needs CONFIG_PROC_CHILDREN)", err)
	}
	return nil
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
func (l *LinuxProc) Signal(sig syscall.Signal, _ int) error {
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
func (l *LinuxProc) Freeze(context.Context) error { return l.Signal(unix.SIGSTOP, 0) }

// Thaw continues the tasks.
func (l *LinuxProc) Thaw() error { return l.Signal(unix.SIGCONT, 0) }

// KeepHelpers is as Cgroup's.
func (l *LinuxProc) KeepHelpers(since uint64) (kept int, err error) { return keepSince(l.list, since) }

// huntAgain is how long Destroy waits for the reaper until it hunts once more.
const huntAgain = 10 * time.Millisecond

// Destroy kills every descendant of stepd, the host and its helpers included,
// and waits until the reaper has none left to reap: only that proves that no
// descendant is left, however fast they fork. What moves from process to process
// may be missed by all scans of a hunt.
func (l *LinuxProc) Destroy(ctx context.Context) error {
	what := fmt.Sprintf("the step of stepd %d", l.stepd)
	list := func() ([]int, error) { return descendants(l.stepd) }
	if l.reaper == nil {
		return errors.New("internal error: linuxproc has no reaper")
	}
	for ctx.Err() == nil {
		if err := hunt(ctx, what, list); err != nil {
			return err
		}
		select {
		case <-l.reaper.NoChildren():
			return nil
		case <-ctx.Done():
		case <-time.After(huntAgain):
		}
	}
	left, err := list()
	if err != nil {
		return err
	}
	return newSurvivorsError(what, left, context.Cause(ctx))
}

// PGID tracks a step by the process group of its tasks, as Slurm's
// proctrack/pgid does. A process that leaves the group (setsid, a shell with
// job control) escapes: it is neither seen nor signalled. Use it only where a
// site asks for it by name, and CheckDescent fails.
type PGID struct {
	noCgroup
	mu   sync.Mutex
	pgid int // guarded by mu; the first task's pid, 0 before Add
}

// NewPGID returns a tracker of a group that does not exist yet: the first Add
// names it.
func NewPGID() *PGID { return &PGID{} }

// Create has nothing to make.
func (p *PGID) Create() error { return nil }

// Add takes the first pid as the group's; the tasks join it by themselves
// before they exec (rank 0 leads the group).
func (p *PGID) Add(_, pid int) error {
	if pid <= 1 { // kill(2) would take -1 for every process there is
		return fmt.Errorf("cannot track process group %d: not a task's process id", pid)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pgid = cmp.Or(p.pgid, pid)
	return nil
}

// EvictHost has nothing to do: the host is not in the tasks' group.
func (p *PGID) EvictHost(int) error { return nil }

func (p *PGID) group() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pgid
}

func (p *PGID) list() ([]int, error) {
	pgid := p.group()
	if pgid == 0 {
		return nil, nil
	}
	return ofFamily(func(f family) bool { return f.pgrp == pgid })
}

// PIDs lists the living members of the group.
func (p *PGID) PIDs() ([]int, error) { return living(p.list) }

// Signal sends sig to the group in one call, so no member can be missed.
func (p *PGID) Signal(sig syscall.Signal, _ int) error {
	pgid := p.group()
	if pgid == 0 {
		return nil
	}
	err := linux.IgnoringEINTR(func() error { return unix.Kill(-pgid, sig) })
	if err != nil && !linux.IsGone(err) {
		return fmt.Errorf("cannot send %s to process group %d: %w", unix.SignalName(sig), pgid, err)
	}
	return nil
}

// Kill kills the group and waits for the end of its members.
func (p *PGID) Kill(ctx context.Context) error {
	if err := p.Signal(unix.SIGKILL, 0); err != nil {
		return err
	}
	return hunt(ctx, fmt.Sprintf("process group %d", p.group()), p.list)
}

// Freeze stops the group by SIGSTOP. It does not wait.
func (p *PGID) Freeze(context.Context) error { return p.Signal(unix.SIGSTOP, 0) }

// Thaw continues the group.
func (p *PGID) Thaw() error { return p.Signal(unix.SIGCONT, 0) }

// KeepHelpers keeps none: what the host has forked is not in the group.
func (p *PGID) KeepHelpers(uint64) (kept int, err error) { return 0, nil }

// Destroy kills the group. The host is not in it: stepd ends that itself.
func (p *PGID) Destroy(ctx context.Context) error { return p.Kill(ctx) }

// family is a process's place among others: proc_pid_stat(5), fields 5 and 6.
type family struct{ pgrp, session int }

// parseFamily reads /proc/PID/stat.
func parseFamily(data []byte) (family, error) {
	_, fields := linux.ParseStat(data)
	if len(fields) < 4 {
		return family{}, fmt.Errorf("too few fields in %q", data)
	}
	pgrp, err1 := strconv.ParseInt(fields[2], 10, 32)
	session, err2 := strconv.ParseInt(fields[3], 10, 32)
	return family{int(pgrp), int(session)}, errors.Join(err1, err2)
}

// ofFamily lists the processes whose place is is.
func ofFamily(is func(family) bool) (members []int, err error) {
	pids, err := allPIDs()
	if err != nil {
		return nil, err
	}
	for _, pid := range pids {
		f, ok, err := readFamily(pid)
		if err != nil {
			return nil, err
		}
		if ok && is(f) {
			members = append(members, pid)
		}
	}
	return members, nil
}

// readFamily returns ok=false for a process that is gone.
func readFamily(pid int) (f family, ok bool, err error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "stat")
	data, err := os.ReadFile(path)
	if noProcess(err) {
		return family{}, false, nil
	}
	if err == nil {
		f, err = parseFamily(data)
	}
	if err != nil {
		return family{}, false, fmt.Errorf("cannot read %q: %w", path, err)
	}
	return f, true, nil
}

// noProcess: ESRCH comes from files of a process that ended after the open.
func noProcess(err error) bool { return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// allPIDs lists the processes of this pid namespace.
func allPIDs() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list the processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot list the processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// descendants lists the processes below each of roots, without the roots,
// parents before their children. Zombies are among them. Children of a process
// that dies during the scan go to the roots (if one of these is a subreaper),
// so these are read again at the end, until nothing new is found.
func descendants(roots ...int) ([]int, error) { return descendantsBy(childrenOf, roots...) }

// descendantsBy reads a process's children by a function.
func descendantsBy(children func(pid int) ([]int, error), roots ...int) ([]int, error) {
	seen := set(roots)
	var found []int
	add := func(parent int) error {
		pids, err := children(parent)
		for _, pid := range pids {
			if !seen[pid] {
				seen[pid] = true
				found = append(found, pid)
			}
		}
		return err
	}
	for done := 0; ; {
		for _, root := range roots {
			if err := add(root); err != nil {
				return nil, err
			}
		}
		if done == len(found) {
			return found, nil
		}
		for ; done < len(found); done++ {
			if err := add(found[done]); err != nil {
				return nil, err
			}
		}
	}
}

// childrenOf reads the children of every thread, since each has its own list.
func childrenOf(pid int) ([]int, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "task")
	threads, err := os.ReadDir(dir)
	if noProcess(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the threads of process %d: %w", pid, err)
	}
	var all []int
	for _, thread := range threads {
		pids, err := childrenOfThread(pid, thread.Name())
		if err != nil {
			return nil, err
		}
		all = append(all, pids...)
	}
	return all, nil
}

// childrenOfThread reads the list of one thread; a thread that has ended has none.
func childrenOfThread(pid int, thread string) ([]int, error) {
	path := filepath.Join("/proc", strconv.Itoa(pid), "task", thread, "children")
	data, err := os.ReadFile(path)
	if noProcess(err) {
		return nil, nil
	}
	var pids []int
	if err == nil {
		pids, err = parsePIDs(data)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", path, err)
	}
	return pids, nil
}
