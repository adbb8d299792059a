package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"github.com/opencontainers/runc/libcontainer/system"
	"golang.org/x/sys/unix"
)

// StartTime is when process pid started, in clock ticks since boot
// (proc_pid_stat(5), field 22). With pid and BootID it names one process for
// ever.
func StartTime(pid int) (uint64, error) {
	// libcontainer's Stat takes 20 system calls for it; a noded that starts asks for
	// each of its steps.
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil {
		var start uint64
		if start, err = parseStart(data); err == nil {
			return start, nil
		}
	}
	return 0, fmt.Errorf("cannot read the start time of process %d: %w", pid, err)
}

// TicksSinceBoot is the time now as StartTime has it.
func TicksSinceBoot() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) // it fails for no clock that there is
	return uint64(ts.Nano()) / uint64(Tick)
}

// Tick is the unit of StartTime: USER_HZ is 100.
const Tick = 10 * time.Millisecond

// parseStart reads field 22 of /proc/PID/stat.
func parseStart(stat []byte) (uint64, error) {
	_, fields := ParseStat(stat)
	if len(fields) < 20 {
		return 0, fmt.Errorf("cannot parse %.80q: %d fields behind the name, want 20 and more", stat, len(fields))
	}
	return strconv.ParseUint(fields[22-3], 10, 64)
}

// exiting is the kernel's PF_EXITING, of field 9 of /proc/PID/stat.
const exiting = 0x4

// IsExiting reports whether a process exists that is on its way out and no zombie yet.
func IsExiting(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, f := ParseStat(stat)
	if err != nil || len(f) < 7 {
		return false
	}
	flags, err := strconv.ParseUint(f[9-3], 10, 64)
	return err == nil && flags&exiting != 0
}

// ParseStat splits /proc/PID/stat (proc_pid_stat(5)) into the process's name and the fields
// behind it, of which the first is field 3, the state. The name is under the user's control
// and may hold anything, ')' and blanks included; no field behind it has a parenthesis.
// Without a name there are no fields.
func ParseStat(stat []byte) (name string, fields []string) {
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return "", nil
	}
	return string(stat[open+1 : end]), strings.Fields(string(stat[end+1:]))
}

const bootIDPath = "/proc/sys/kernel/random/boot_id"

// firstPIDNamespace is the inode of the pid namespace that the kernel begins with
// (PID_NS_INIT_INO, linux/nsfs.h).
const firstPIDNamespace = 0xEFFFFFFC

// BootID is the kernel's name for this boot, a UUID (random(4)). In a pid namespace
// of a container all processes end with process 1 as in a reboot, and the next ones
// have their numbers: there "/" and the start time of process 1 follow.
func BootID() (string, error) {
	data, err := os.ReadFile(bootIDPath)
	if err != nil {
		return "", fmt.Errorf("cannot read the boot id: %w", err)
	}
	id := strings.TrimSpace(string(data))
	if len(id) != 36 {
		return "", fmt.Errorf("cannot parse the boot id in %q: got %q", bootIDPath, id)
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return "", fmt.Errorf("cannot look at the own pid namespace: %w", err)
	}
	if st.Ino == firstPIDNamespace {
		return id, nil
	}
	start, err := StartTime(1)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s/%d", id, start), nil
}

// SameBoot reports whether noted, a value of BootID, is of the boot now. What was noted
// by a version that did not know of containers has the UUID alone: of such a one a
// process is known by its number and start time, and there are no others.
func SameBoot(noted, now string) bool {
	uuid, _, contained := strings.Cut(now, "/")
	return noted == now || contained && noted == uuid
}

// SetSubreaper makes the calling process the parent of its orphaned
// descendants (PR_SET_CHILD_SUBREAPER). It holds for all threads, and is not
// inherited.
func SetSubreaper() error {
	if err := system.SetSubreaper(1); err != nil {
		return fmt.Errorf("cannot become a subreaper: %w", err)
	}
	return nil
}

// Uptime is how long the host has run, by the clock that is never set
// (CLOCK_MONOTONIC, clock_gettime(2)): all processes of a boot read the same one.
func Uptime() time.Duration {
	var ts unix.Timespec
	// It fails for no clock that there is.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

// ThreadTime is what the calling thread has had of a processor (CLOCK_THREAD_CPUTIME_ID).
func ThreadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // there is such a clock
	return time.Duration(ts.Nano())
}

// PidfdOpen returns a descriptor (close-on-exec) that names the process pid,
// a thread group leader, until it is closed, whatever becomes of the number.
// ESRCH: there is no such process. Linux 5.3.
func PidfdOpen(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	// Until Linux 6.15 the number of a reaped process that others still have as
	// their session or group, or that is a thread's, gives EINVAL (kernel/fork.c,
	// pidfd_prepare); since then it is ESRCH, and ENOENT for the thread's.
	if pid > 0 && (err == unix.EINVAL || err == unix.ENOENT) {
		err = unix.ESRCH
	}
	if err != nil {
		return -1, fmt.Errorf("cannot open a pidfd of process %d: %w", pid, err)
	}
	return fd, nil
}

// PidfdSignal sends sig to the process. ESRCH: it is gone and reaped.
func PidfdSignal(pidfd int, sig syscall.Signal) error {
	err := IgnoringEINTR(func() error { return unix.PidfdSendSignal(pidfd, sig, nil, 0) })
	if err != nil {
		return fmt.Errorf("cannot send %s through a pidfd: %w", unix.SignalName(sig), err)
	}
	return nil
}

// PidfdExited reports whether all threads of the process have ended. A zombie
// has, except one whose leader ended before its other threads.
func PidfdExited(pidfd int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := Uninterrupted(func() (int, error) { return unix.Poll(fds, 0) })
	if err != nil {
		return false, fmt.Errorf("cannot poll a pidfd: %w", err)
	}
	return n > 0, nil
}

// PidfdWait returns when all the processes have ended (as PidfdExited means
// it), or with ctx's cause. It reaps none.
func PidfdWait(ctx context.Context, pidfds ...int) error {
	// EPOLLONESHOT: a pidfd stays readable, each is to be counted once.
	p, err := NewPoller(unix.EPOLLIN|unix.EPOLLONESHOT, pidfds...)
	if err != nil {
		return err
	}
	defer p.Close()
	left := len(pidfds)
	return p.Wait(ctx, func(ready []int) (bool, error) {
		left -= len(ready)
		return left == 0, nil
	})
}

// IsGone reports whether err says that a process does not exist (any more).
func IsGone(err error) bool { return errors.Is(err, unix.ESRCH) }

// affinityMax bounds a CPU mask, in bytes: more CPUs than any kernel can have.
const affinityMax = 8192

// SetAffinity lets the thread pid run on the CPUs of mask alone, CPU n being bit
// n%64 of word n/64. Unlike unix.SchedSetaffinity it takes more than 1024 CPUs.
// The kernel leaves out, without a word, what the thread's cpuset has not; EINVAL
// says that nothing is left.
func SetAffinity(pid int, mask []uint64) error {
	if len(mask) == 0 {
		mask = []uint64{0}
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SCHED_SETAFFINITY, uintptr(pid), uintptr(8*len(mask)), uintptr(unsafe.Pointer(&mask[0])))
	if errno != 0 {
		return fmt.Errorf("cannot set the CPUs of process %d: %w", pid, errno)
	}
	return nil
}

// Affinity is the mask of CPUs that the thread pid may run on, as SetAffinity's.
func Affinity(pid int) ([]uint64, error) {
	for size := 16; ; size *= 4 { // words; the kernel wants room for all CPUs that it can have
		mask := make([]uint64, size)
		n, _, errno := unix.RawSyscall(unix.SYS_SCHED_GETAFFINITY, uintptr(pid), uintptr(8*size), uintptr(unsafe.Pointer(&mask[0])))
		switch {
		case errno == 0:
			return mask[:n/8], nil
		case !errors.Is(errno, unix.EINVAL) || 8*size >= affinityMax:
			return nil, fmt.Errorf("cannot read the CPUs of process %d: %w", pid, errno)
		}
	}
}

// BatchThread makes the calling goroutine's thread its own, and one that preempts
// no other thread when it is woken (SCHED_BATCH, sched(7)): it gets it when it is
// free, or when its turn comes. So a thread that passes bytes on finds many of them,
// and not the first few, where the processors are busy. Its nice value stays. The thread
// ends with the goroutine.
func BatchThread() error {
	runtime.LockOSThread()
	now, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		return fmt.Errorf("cannot read the scheduling policy: %w", err)
	}
	a := &unix.SchedAttr{Policy: unix.SCHED_BATCH, Flags: now.Flags & unix.SCHED_FLAG_RESET_ON_FORK, Nice: now.Nice}
	if err := unix.SchedSetAttr(0, a, 0); err != nil {
		return fmt.Errorf("cannot set the scheduling policy SCHED_BATCH: %w", err)
	}
	return nil
}

// EnterMounts puts the calling thread into a job's mount namespace: whatever in Go
// resolves a path for a step does it behind this. nil is a job without a container,
// which sees the node's own mounts. The caller's goroutine is locked to its thread,
// and ends with it: there is no way back. The tasks' half is spank/host/container.c.
func EnterMounts(ns *os.File) error {
	if ns == nil {
		return nil
	}
	// A thread that shares its root and directory with others cannot change namespaces.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("cannot enter the job's mount namespace: unshare: %w", err)
	}
	if err := OnFD(ns, func(fd int) error { return unix.Setns(fd, unix.CLONE_NEWNS) }); err != nil {
		return fmt.Errorf("cannot enter the job's mount namespace: setns: %w", err)
	}
	return nil
}

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

// siginfo is siginfo_t of a 64-bit machine: three ints and their padding, then SIGCHLD's part
// (waitid(2)).
type siginfo struct {
	signo, errno, code, _ int32
	pid                   int32
	_                     [108]byte
}

// ended is a child that has ended and is not reaped; 0 if there is none, ECHILD
// if there are no children.
func ended() (pid int, err error) {
	var info siginfo
	err = IgnoringEINTR(func() error {
		return unix.Waitid(unix.P_ALL, 0, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	})
	return int(info.pid), err
}

// ChildStopped reports whether a child of this process is stopped by a signal. The kernel sends
// SIGCHLD when that begins, and when it goes on.
func ChildStopped(pid int) bool {
	var info siginfo
	err := IgnoringEINTR(func() error {
		return unix.Waitid(unix.P_PID, pid, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT|unix.WALL, nil)
	})
	return err == nil && info.pid != 0
}

// ResourceLimit is a limit of setrlimit(2), by its name without RLIMIT_.
type ResourceLimit struct {
	Name   string
	Number int
}

// ResourceLimits are the limits that Slurm propagates.
var ResourceLimits = []ResourceLimit{
	{"CPU", unix.RLIMIT_CPU}, {"FSIZE", unix.RLIMIT_FSIZE}, {"DATA", unix.RLIMIT_DATA}, {"STACK", unix.RLIMIT_STACK},
	{"CORE", unix.RLIMIT_CORE}, {"RSS", unix.RLIMIT_RSS}, {"NPROC", unix.RLIMIT_NPROC}, {"NOFILE", unix.RLIMIT_NOFILE},
	{"MEMLOCK", unix.RLIMIT_MEMLOCK}, {"AS", unix.RLIMIT_AS},
}
