package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/step"
	"stepd/step/launch"
)

// MachineProcesses is how many processes and threads the machine can have; kernel is
// /proc/sys/kernel.
func MachineProcesses(kernel string) (uint64, error) {
	least := uint64(0)
	for _, name := range []string{"pid_max", "threads-max"} {
		path := filepath.Join(kernel, name)
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, fmt.Errorf("cannot read how many processes there can be: %w", err)
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 63)
		if err != nil {
			return 0, fmt.Errorf("cannot parse %q: %w", path, err)
		}
		if least == 0 || n < least {
			least = n
		}
	}
	return least, nil
}

// Processes says once that a step has reached the limit of its processes, when it does. Make it
// with NewProcesses, of a step that has one; its methods implement task.Plugin.
type Processes struct {
	dir   string
	max   uint64
	say   func(text string)
	ranks []int

	told    bool // of watch alone, until it has ended
	stop    context.CancelFunc
	stopped chan error
}

// NewProcesses makes the watch of a step's limit. ranks are its tasks', by local id. say may be
// called from another goroutine.
func NewProcesses(c step.Confinement, ranks []int, say func(text string)) *Processes {
	return &Processes{dir: c.ProcessesDir, max: c.ProcessesMax, ranks: ranks, say: say}
}

// Name is the name in messages.
func (p *Processes) Name() string { return "processes" }

// PreSetuid begins to watch. Nothing that fails here ends the launch.
func (p *Processes) PreSetuid() error {
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.stopped = stop, make(chan error, 1)
	go func() { p.stopped <- p.watch(ctx) }()
	return nil
}

// watch returns when the limit was reached, or with ctx.
func (p *Processes) watch(ctx context.Context) error {
	fd, err := linux.Uninterrupted(func() (int, error) {
		return unix.Open(filepath.Join(p.dir, eventsFile), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil // a kernel without the file: nothing is said
	}
	defer unix.Close(fd)
	poller, err := linux.NewPoller(unix.EPOLLPRI, fd)
	if err != nil {
		return err
	}
	defer poller.Close()
	err = poller.Wait(ctx, func([]int) (bool, error) {
		var buf [512]byte
		n, err := linux.Uninterrupted(func() (int, error) { return unix.Pread(fd, buf[:], 0) }) // arms the next event
		if err != nil || refused(buf[:n]) == 0 {
			return err != nil, nil // the cgroup is gone, or nothing has happened
		}
		p.tell()
		return true, nil
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

const eventsFile = "pids.events"

// refused is how many forks the limit has refused, by pids.events (cgroup-v2.rst).
func refused(events []byte) uint64 {
	for line := range strings.Lines(string(events)) {
		if count, ok := strings.CutPrefix(strings.TrimSpace(line), "max "); ok {
			n, _ := strconv.ParseUint(count, 10, 64)
			return n
		}
	}
	return 0
}

func (p *Processes) tell() {
	p.told = true
	p.say(fmt.Sprintf("the step has reached the limit of %d processes and threads: fork fails in it (StepProcessesPercent of stepd.conf)", p.max))
}

// PreLaunch has nothing to add.
func (p *Processes) PreLaunch(*launch.Launch) error { return nil }

// PreLaunchPriv has nothing to do.
func (p *Processes) PreLaunchPriv(int, int) error { return nil }

// PostTerm has nothing to do.
func (p *Processes) PostTerm(launch.TaskEnd) {}

// PostStep ends the watch, and says what it has not said. Before Linux 6.12 the kernel counts
// where the refused process is: in a task's own cgroup, where it has one.
func (p *Processes) PostStep() error {
	p.stop()
	err := <-p.stopped
	for i := -1; i < len(p.ranks) && !p.told; i++ {
		dir := p.dir
		if i >= 0 {
			dir = filepath.Join(dir, launch.TaskName(p.ranks[i]))
		}
		events, rerr := os.ReadFile(filepath.Join(dir, eventsFile))
		if errors.Is(rerr, fs.ErrNotExist) {
			continue // there is none, or no such file
		}
		if rerr != nil && !errors.Is(rerr, unix.ENODEV) {
			err = errors.Join(err, fmt.Errorf("cannot read whether the step had too many processes: %w", rerr))
		}
		if refused(events) > 0 {
			p.tell()
		}
	}
	return err
}
