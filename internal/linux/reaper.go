package linux

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Exit is how a child ended.
type Exit struct {
	PID    int
	Status syscall.WaitStatus
	Usage  syscall.Rusage
	// Last is the result of the reaper's last look at the process, "" without one.
	Last string
}

// Reaper is the only caller of wait4(2) in its process: two would steal each
// other's statuses, os/exec's included. All children must come from Start, or
// be orphans that the process adopted as a subreaper.
//
// Methods may be called from several goroutines.
type Reaper struct {
	orphan func(Exit)
	last   func(pid int) string
	chld   chan os.Signal
	kick   chan struct{}
	quit   chan struct{}
	done   chan struct{}

	// mu is held over fork and over wait4, so that no exit is seen before its
	// child is registered, and no "no children" while one is being made.
	mu      sync.Mutex
	watched map[int]chan Exit // guarded by mu
	none    []chan struct{}   // guarded by mu
	// spared are children that NoChildren does not count.
	spared map[int]bool // guarded by mu
}

// NewReaper starts the reaper. It calls orphan, from its own goroutine and
// without locks, for each process reaped that Start has not made; nil is
// allowed. orphan must not block. Close ends it.
//
// last, unless it is nil, looks at each child that has ended before it is reaped
// and its files in /proc go; its result is in Exit.Last. It must not block.
func NewReaper(orphan func(Exit), last func(pid int) string) *Reaper {
	r := &Reaper{
		orphan: orphan, last: last,
		// Size 1: one pending notice stands for any number of exits, since
		// each round reaps all there are.
		chld:    make(chan os.Signal, 1),
		kick:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
		watched: make(map[int]chan Exit),
	}
	// Notify also replaces an inherited SIG_IGN, with which the kernel would
	// throw the statuses away.
	signal.Notify(r.chld, syscall.SIGCHLD)
	go r.loop()
	return r
}

// Close stops reaping and waits for the goroutine. Registered children that
// still live are never reported.
func (r *Reaper) Close() {
	signal.Stop(r.chld)
	close(r.quit)
	<-r.done
}

// Start starts a child, as syscall.StartProcess does. Its exit comes through
// the channel, once, however early it happens.
func (r *Reaper) Start(argv0 string, argv []string, attr *syscall.ProcAttr) (int, <-chan Exit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, _, err := syscall.StartProcess(argv0, argv, attr)
	if err != nil {
		return 0, nil, fmt.Errorf("cannot start %q: %w", argv0, err)
	}
	exited := make(chan Exit, 1) // size 1: the reaper never waits for a reader
	r.watched[pid] = exited
	return pid, exited, nil
}

// StartSpared is Start for a child that NoChildren does not count: it serves
// others and ends on command.
func (r *Reaper) StartSpared(argv0 string, argv []string, attr *syscall.ProcAttr) (int, <-chan Exit, error) {
	pid, exited, err := r.Start(argv0, argv, attr)
	if err != nil {
		return pid, exited, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, alive := r.watched[pid]; alive {
		if r.spared == nil {
			r.spared = make(map[int]bool)
		}
		r.spared[pid] = true
	}
	return pid, exited, nil
}

// NoChildren returns a channel that is closed as soon as the process has no
// children. In a subreaper this means that no descendant is left, since every
// orphan becomes a child: the kernel's word, not a list that was read.
func (r *Reaper) NoChildren() <-chan struct{} {
	none := make(chan struct{})
	r.mu.Lock()
	r.none = append(r.none, none)
	r.mu.Unlock()
	select {
	case r.kick <- struct{}{}:
	default: // a round is due already, and it comes after this append
	}
	return none
}

func (r *Reaper) loop() {
	defer close(r.done)
	for {
		for _, exit := range r.reapAll() {
			if r.orphan != nil {
				r.orphan(exit)
			}
		}
		select {
		case <-r.chld:
		case <-r.kick:
		case <-r.quit:
			return
		}
	}
}

// reapAll reaps what there is, delivers what is registered and returns the rest.
func (r *Reaper) reapAll() (orphans []Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		exit, err := r.reap()
		if errors.Is(err, unix.ECHILD) || (exit.PID == 0 && r.onlySpared()) {
			for _, none := range r.none {
				close(none)
			}
			r.none = nil
			return orphans
		}
		if err != nil || exit.PID <= 0 {
			return orphans // children live on; no other error is documented
		}
		delete(r.spared, exit.PID)
		exited, ok := r.watched[exit.PID]
		if !ok {
			orphans = append(orphans, exit)
			continue
		}
		delete(r.watched, exit.PID)
		exited <- exit
	}
}

// onlySpared reports whether all children are spared ones. The caller holds mu.
func (r *Reaper) onlySpared() bool {
	if len(r.none) == 0 || len(r.spared) == 0 {
		return false
	}
	// A child is in the list of the thread that made it, an orphan in the leader's.
	threads, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(threads) == 0 {
		return false
	}
	for _, name := range threads {
		b, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
			return false
		}
		for pid := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(pid); err != nil || !r.spared[n] {
				return false
			}
		}
	}
	return true
}

// reap reaps one child; its PID is 0 where none has ended.
func (r *Reaper) reap() (exit Exit, err error) {
	which := -1
	if r.last != nil {
		pid, err := ended()
		if err != nil || pid == 0 {
			return exit, err
		}
		which, exit.Last = pid, r.last(pid)
	}
	exit.PID, err = Uninterrupted(func() (int, error) {
		// __WALL: also children whose clone(2) asked for no SIGCHLD.
		return syscall.Wait4(which, &exit.Status, syscall.WNOHANG|unix.WALL, &exit.Usage)
	})
	return exit, err
}

// ended is a child that has ended and is not reaped; 0 if there is none, ECHILD
// if there are no children.
func ended() (pid int, err error) {
	// siginfo_t of a 64-bit machine: three ints and their padding, then
	// SIGCHLD's part (waitid(2)).
	var info struct {
		signo, errno, code, _ int32
		pid                   int32
		_                     [108]byte
	}
	err = IgnoringEINTR(func() error {
		return unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	})
	return int(info.pid), err
}
