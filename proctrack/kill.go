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
	var n int
	err := linux.IgnoringEINTR(func() (err error) {
		n, err = unix.Pread(fd, buf[:], 0)
		return err
	})
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
// without an event. So the group is frozen as well: SIGKILL ends a
// frozen process all the same, and once nothing but newcomers is left, the
// kernel says "frozen 1", which brings another strike.
//
// It is not what kill begins with, since the kernel holds back an event that
// follows another one within 10 ms (cgroup_file_notify), "populated 0" too.
func (g *group) killFreezing(ctx context.Context, strike func() error) error {
	first := true
	err := g.await(ctx, func(ev events) (bool, error) {
		if !ev.populated {
			return true, nil
		}
		if !first && !ev.frozen {
			return false, nil
		}
		if err := strike(); err != nil {
			return false, err
		}
		if first {
			first = false
			return false, g.freeze("1")
		}
		return false, nil
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
	if gone(err) {
		return nil
	}
	return err
}

// freeze writes "1" or "0". Before Linux 5.2 there is no such file.
func (g *group) freeze(value string) error {
	err := g.write("cgroup.freeze", value)
	if gone(err) {
		return nil
	}
	return err
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
	return signalEach(pids, sig, func() (map[int]bool, error) {
		again, err := g.pids()
		return set(again), err
	})
}

func set(pids []int) map[int]bool {
	m := make(map[int]bool, len(pids))
	for _, pid := range pids {
		m[pid] = true
	}
	return m
}
