package proctrack

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// PGID tracks a step by the process group of its tasks, as Slurm's
// proctrack/pgid does. A process that leaves the group (setsid, a shell with
// job control) escapes: it is neither seen nor signalled. Use it only where a
// site asks for it by name.
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
func (p *PGID) Signal(sig syscall.Signal) error {
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
	if err := p.Signal(unix.SIGKILL); err != nil {
		return err
	}
	return hunt(ctx, fmt.Sprintf("process group %d", p.group()), p.list)
}

// Freeze stops the group by SIGSTOP. It does not wait.
func (p *PGID) Freeze(context.Context) error { return p.Signal(unix.SIGSTOP) }

// Thaw continues the group.
func (p *PGID) Thaw() error { return p.Signal(unix.SIGCONT) }

// Destroy kills the group. The host is not in it: stepd ends that itself.
func (p *PGID) Destroy(ctx context.Context) error { return p.Kill(ctx) }
