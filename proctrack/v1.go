package proctrack

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The file of v1's freezer and what is written to it (freezer-subsystem.rst).
const (
	v1State  = "freezer.state"
	v1Frozen = "FROZEN"
	v1Thawed = "THAWED"
)

// What v1 gives no event for is asked again after pauses, of which the first
// lasts v1Pause and the longest v1PauseMax: that a group is frozen, and that
// processes which have ended no longer keep it from being removed.
const (
	v1Pause    = time.Millisecond
	v1PauseMax = 20 * time.Millisecond
)

// v1Rounds bounds how often the members of a frozen group are struck. All that
// were forking when it was frozen have done so by the second round.
const v1Rounds = 16

// killV1 kills every process of a v1 group and of all groups below it, and
// returns when none is left. v1 has no cgroup.kill: a group of the freezer is
// frozen first, so that none forks while they are struck one by one. SIGKILL
// ends a process of v1's freezer only when that is thawed.
func (g *group) killV1(ctx context.Context) error {
	pids, err := g.pids()
	if err != nil || len(pids) == 0 {
		return errors.Join(err, g.thawV1()) // newcomers would not die frozen
	}
	if err := g.write(v1State, v1Frozen); err != nil && !gone(err) {
		return err
	}
	err = g.strikeFrozen()
	// Thawed in any case: what was struck can end.
	if err := errors.Join(err, g.thawV1()); err != nil {
		return err
	}
	return hunt(ctx, fmt.Sprintf("cgroup %q", g.path), g.pids)
}

// strikeFrozen strikes until a look finds no new process.
func (g *group) strikeFrozen() error {
	struck := make(map[int]bool)
	for range v1Rounds {
		pids, err := g.pids()
		if err != nil {
			return err
		}
		var fresh []int
		for _, pid := range pids {
			if !struck[pid] {
				struck[pid] = true
				fresh = append(fresh, pid)
			}
		}
		if len(fresh) == 0 {
			return nil
		}
		err = signalEach(fresh, unix.SIGKILL, func() (map[int]bool, error) {
			again, err := g.pids()
			return set(again), err
		})
		if err != nil {
			return err
		}
	}
	return nil // hunt does the rest
}

// thawV1 thaws the group and all below it, which may be frozen by themselves.
func (g *group) thawV1() error {
	return g.walk(func(g *group) error {
		if err := g.write(v1State, v1Thawed); err != nil && !gone(err) {
			return err
		}
		return nil
	}, nil)
}

// freezeV1 freezes the group. The kernel looks whether all stand still when it
// is asked, and sends no event.
func (g *group) freezeV1(ctx context.Context) error {
	if err := g.write(v1State, v1Frozen); err != nil {
		return err
	}
	for p := (pauser{}); ; {
		state, err := g.read(v1State)
		if gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(state)) == v1Frozen {
			return nil
		}
		if err := p.pause(ctx); err != nil {
			return err
		}
	}
}

// pauser makes pauses that grow.
type pauser struct{ last time.Duration }

func (p *pauser) pause(ctx context.Context) error {
	p.last = min(max(2*p.last, v1Pause), v1PauseMax)
	t := time.NewTimer(p.last)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
