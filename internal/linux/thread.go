package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

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

// SetFSUser makes the calling thread use files as a user: by uid, gid and groups,
// without root's right to pass by permissions (setfsuid(2)). The caller's goroutine
// is locked to its thread, and ends with it: there is no way back.
func SetFSUser(uid, gid uint32, groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	// Not the functions of package syscall: those act on all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
		return fmt.Errorf("setgroups: %w", errno)
	}
	const keep = ^uintptr(0) // no id: the call returns the present one
	for _, c := range []struct {
		name string
		call uintptr
		id   uint32
	}{{"setfsgid", unix.SYS_SETFSGID, gid}, {"setfsuid", unix.SYS_SETFSUID, uid}} {
		_, _, _ = unix.RawSyscall(c.call, uintptr(c.id), 0, 0)
		if is, _, _ := unix.RawSyscall(c.call, keep, 0, 0); uint32(is) != c.id {
			return fmt.Errorf("%s %d: %w", c.name, c.id, unix.EPERM)
		}
	}
	return nil
}
