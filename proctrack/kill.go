package proctrack

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// events is what cgroup.events says (cgroup-v2.rst).
type events struct {
	populated bool // a live process is in the group or below it; zombies do not count
	frozen    bool // every process of it stands still
}

func parseEvents(data []byte) (events, error) {
	var ev events
	found := false
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if key != "populated" && key != "frozen" {
			continue // kernels may add keys
		}
		if value != "0" && value != "1" {
			return events{}, fmt.Errorf("%s is %q, want 0 or 1", key, value)
		}
		if key == "populated" {
			ev.populated, found = value == "1", true
		} else {
			ev.frozen = value == "1"
		}
	}
	if !found {
		return events{}, fmt.Errorf("no line %q in %q", "populated", data)
	}
	return ev, nil
}

// await returns when check says so; it is called with the state of the group
// at once and after each change, or with populated=false when the group is
// removed. When ctx ends first, its cause is returned.
func (g *group) await(ctx context.Context, check func(events) (bool, error)) error {
	path := filepath.Join(g.path, "cgroup.events")
	fd, err := openat(g.fd, "cgroup.events", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC)
	if gone(err) {
		_, err = check(events{})
		return err
	}
	if err != nil {
		return fmt.Errorf("cannot open %q: %w", path, err)
	}
	defer unix.Close(fd)
	poller, err := linux.NewPoller(unix.EPOLLPRI, fd)
	if err != nil {
		return err
	}
	defer poller.Close()
	return poller.Wait(ctx, func([]int) (bool, error) {
		ev, err := readEvents(fd)
		if gone(err) {
			_, err = check(events{})
			return true, err
		}
		if err != nil {
			return false, fmt.Errorf("cannot read %q: %w", path, err)
		}
		return check(ev)
	})
}

// readEvents reads from the start: this is what arms the next POLLPRI.
func readEvents(fd int) (events, error) {
	var buf [512]byte
	n, err := linux.Uninterrupted(func() (int, error) { return unix.Pread(fd, buf[:], 0) })
	if err != nil {
		return events{}, err
	}
	return parseEvents(buf[:n])
}

// patience is how long a kill waits for the end of what it has struck before
// it looks for more. It is generous: SIGKILL is a matter of milliseconds, for
// all but processes in uninterruptible sleep.
const patience = 200 * time.Millisecond

// kill kills every process of the group and of all groups below it, frozen or
// not, and returns when none is left; a group that is gone has none. It leaves
// the group thawed.
func (g *group) kill(ctx context.Context) error {
	if g.v1 {
		return g.killV1(ctx)
	}
	err := g.killKeepingFrozen(ctx)
	if thawErr := g.freeze("0"); err == nil {
		err = thawErr
	}
	return err
}

// killKeepingFrozen is kill without the thaw.
func (g *group) killKeepingFrozen(ctx context.Context) error {
	if g.v1 {
		return g.killV1(ctx) // where the frozen do not die
	}
	if !g.has("cgroup.kill") {
		return g.killFreezing(ctx, g.strike)
	}
	quick, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	struck := false
	err := g.await(quick, func(ev events) (bool, error) {
		if !ev.populated {
			return true, nil
		}
		if struck {
			return false, nil
		}
		struck = true
		return false, g.strike()
	})
	if err == nil || quick.Err() == nil {
		return err
	}
	return g.killFreezing(ctx, g.strike)
}

// killFreezing does the same where one strike is not enough: it may miss
// children (without cgroup.kill), and it does miss what is moved in after it,
// without an event, and what strikeEach is for. So the group is frozen as well: SIGKILL ends a
// frozen process all the same, and once nothing is left but newcomers and what a strike does
// not reach, the kernel says "frozen 1", which brings another strike and then a signal to each
// process. Before, that would cost a busy machine a signal for each of thousands that are dying.
//
// It is not what kill begins with, since the kernel holds back an event that
// follows another one within 10 ms (cgroup_file_notify), "populated 0" too.
func (g *group) killFreezing(ctx context.Context, strike func() error) error {
	first := true
	err := g.await(ctx, func(ev events) (bool, error) {
		switch {
		case !ev.populated:
			return true, nil
		case first:
			first = false
			if err := strike(); err != nil {
				return false, err
			}
			if !ev.frozen { // else it is suspended, and nothing will change
				return false, g.freeze("1")
			}
		case !ev.frozen:
			return false, nil
		default:
			if err := strike(); err != nil {
				return false, err
			}
		}
		return false, g.signal(unix.SIGKILL)
	})
	return g.survivors(ctx, err)
}

// freezeAll stops every process of the group and returns when all stand still.
func (g *group) freezeAll(ctx context.Context) error {
	if g.v1 {
		return g.freezeV1(ctx)
	}
	if err := g.write("cgroup.freeze", "1"); err != nil {
		return err
	}
	return g.await(ctx, func(ev events) (bool, error) { return ev.frozen || !ev.populated, nil })
}

// strike sends SIGKILL to all members, including processes that are being forked.
func (g *group) strike() error {
	err := g.write("cgroup.kill", "1")
	if errors.Is(err, unix.ENOENT) { // before Linux 5.14, or the group is gone
		return g.signal(unix.SIGKILL)
	}
	return unlessGone(err)
}

// strikeEach is strike, and then SIGKILL by pidfd to each process that is still
// listed. cgroup.kill signals the first thread of a process alone, and does
// nothing (seen: 6.18) where that has ended by pthread_exit and others live on.
// A strike by itself costs nothing for each process: it comes first.
func (g *group) strikeEach() error {
	if err := g.strike(); err != nil {
		return err
	}
	return g.signal(unix.SIGKILL)
}

// freeze writes "1" or "0". Before Linux 5.2 there is no such file.
func (g *group) freeze(value string) error {
	return unlessGone(g.write("cgroup.freeze", value))
}

// survivors adds to an ended wait who is left.
func (g *group) survivors(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	pids, listErr := g.pids()
	if listErr != nil {
		return listErr
	}
	return newSurvivorsError(fmt.Sprintf("cgroup %q", g.path), pids, err)
}

// signal sends sig to each process of the group and of all groups below it
// that existed when the call began. Processes born during the call do not
// get it: a handler's own children must not be hit.
func (g *group) signal(sig syscall.Signal) error {
	pids, err := g.pids()
	if err != nil {
		return err
	}
	return signalEach(pids, sig, g.pids)
}

func set(pids []int) map[int]bool {
	m := make(map[int]bool, len(pids))
	for _, pid := range pids {
		m[pid] = true
	}
	return m
}

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
	if err := unlessGone(g.write(v1State, v1Frozen)); err != nil {
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
		if err := signalEach(fresh, unix.SIGKILL, g.pids); err != nil {
			return err
		}
	}
	return nil // hunt does the rest
}

// thawV1 thaws the group and all below it, which may be frozen by themselves.
func (g *group) thawV1() error {
	return g.walk(func(g *group) error { return unlessGone(g.write(v1State, v1Thawed)) }, nil)
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
	select {
	case <-time.After(p.last):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// destroyPasses bounds how often a removal begins again because something
// appeared below: each pass kills and waits first, so a second one is rare.
const destroyPasses = 100

// destroyChild kills what is in the child and below it, waits for its end and
// removes all of it, groups that a task made included. A child that is gone
// is done.
func (g *group) destroyChild(ctx context.Context, name string) error {
	var err error
	var p pauser
	for range destroyPasses {
		err = g.destroyOnce(ctx, name)
		// A process or a group came in after the kill.
		if err == nil || !busy(err) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		}
		if !g.v1 {
			continue
		}
		// Or a process of v1 has ended and is not out of its group yet.
		if pauseErr := p.pause(ctx); pauseErr != nil {
			return fmt.Errorf("%w (%w)", err, pauseErr)
		}
	}
	return fmt.Errorf("%w, after %d attempts", err, destroyPasses)
}

func (g *group) destroyOnce(ctx context.Context, name string) error {
	// Kill the whole of it before the first rmdir: cgroup.kill reaches all
	// groups below, and nothing is left that could make new ones. If it
	// had to be frozen it stays so: newcomers need not run.
	return g.removeChild(name, func(child *group) error { return child.killKeepingFrozen(ctx) })
}

// removeChild removes a child with all groups below it; first is done before. A child that
// is gone is done.
func (g *group) removeChild(name string, first func(child *group) error) error {
	child, err := g.child(name)
	if err != nil {
		return unlessGone(err)
	}
	defer child.close()
	if err := first(child); err != nil {
		return err
	}
	if err := child.removeBelow(); err != nil {
		return err
	}
	return unlessGone(g.rmdir(name))
}

// removeBelow removes all groups below g, the lowest first.
func (g *group) removeBelow() error {
	return g.walk(nil, func(parent *group, name string) error { return unlessGone(parent.rmdir(name)) })
}

// mkdirError names the knob behind a refused mkdir (cgroup-v2.rst: EAGAIN
// where cgroup.max.depth or cgroup.max.descendants of an ancestor is reached).
func mkdirError(path string, cause error) error {
	err := fmt.Errorf("cannot create cgroup %q: %w", path, cause)
	var hint string
	switch {
	case errors.Is(cause, unix.EAGAIN):
		hint = limitHint(filepath.Dir(path))
	case errors.Is(cause, unix.ENOSPC):
		hint = dyingHint(filepath.Dir(path))
	case errors.Is(cause, unix.EROFS):
		hint = "the cgroup file system is mounted read-only here"
	}
	if hint == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, hint)
}
