package linux

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OnThread calls f on a thread of its own, which ends with it: f may change what a thread has
// for itself, and need not change it back.
func OnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

// User is as whom root uses the files of a user.
type User struct {
	UID, GID uint32
	Groups   []uint32
}

// Become makes the calling thread the user in all that decides about files: effective and file
// system ids, groups, and no capability. By a capability that setfsuid(2) leaves, CAP_SYS_PTRACE,
// /proc/PID/cwd of another user's process would be the way into what is that one's. The thread's real and
// saved ids stay root's: a user may send signals to a process by theirs (kill(2)). Root itself,
// as the user, keeps its capabilities. It is for OnThread: there is no way back.
func (u User) Become() error {
	var first unsafe.Pointer
	if len(u.Groups) > 0 {
		first = unsafe.Pointer(&u.Groups[0])
	}
	// Not the functions of package syscall: those act on all threads.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.Groups)), uintptr(first), 0); errno != 0 {
		return fmt.Errorf("cannot use files as uid %d: setgroups: %w", u.UID, errno)
	}
	const keep = ^uintptr(0)
	// The gid first: the uid takes the right to set it.
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(u.GID), keep); errno != 0 {
		return fmt.Errorf("cannot use files as gid %d: setresgid: %w", u.GID, errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(u.UID), keep); errno != 0 {
		return fmt.Errorf("cannot use files as uid %d: setresuid: %w", u.UID, errno)
	}
	if u.UID != 0 {
		if err := dropCapabilities(); err != nil {
			return fmt.Errorf("cannot use files as uid %d: %w", u.UID, err)
		}
	}
	return u.check()
}

// dropCapabilities takes all capabilities from the calling thread.
func dropCapabilities() error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none, left [2]unix.CapUserData
	if err := unix.Capset(&h, &none[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	if err := unix.Capget(&h, &left[0]); err != nil {
		return fmt.Errorf("capget: %w", err)
	}
	if left != none {
		return fmt.Errorf("capset: %w", unix.EPERM)
	}
	return nil
}

// check reads back what the calling thread is: on the way to a user's files nothing may have
// failed silently (CVE-2019-19728).
func (u User) check() error {
	const keep = ^uintptr(0) // no id: the call returns the present one
	fsgid, _, _ := unix.RawSyscall(unix.SYS_SETFSGID, keep, 0, 0)
	fsuid, _, _ := unix.RawSyscall(unix.SYS_SETFSUID, keep, 0, 0)
	if uid, gid := unix.Geteuid(), unix.Getegid(); uid != int(u.UID) || gid != int(u.GID) || uint32(fsuid) != u.UID || uint32(fsgid) != u.GID {
		return fmt.Errorf("cannot use files as uid %d, gid %d: the thread has %d, %d: %w", u.UID, u.GID, uid, gid, unix.EPERM)
	}
	return nil
}

// OpenUserPath opens a path that a user has named: on a thread that is the user (Become), or by a
// process that is. Links are followed as the user may follow them, but for those in /proc that
// stand for what a process has open, or is in (openat2(2), RESOLVE_NO_MAGICLINKS): by these a
// path would lead to what it does not name. It does not wait for a FIFO's other side, and the
// descriptor does not block. The error is ELOOP of such a link, or EACCES where it is another user's
// process's, and wraps the errno.
func OpenUserPath(path string, flags int, mode uint32) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC | unix.O_NOCTTY | unix.O_NONBLOCK),
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	fd, err = Uninterrupted(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, &how) })
	if err == unix.ELOOP {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			return -1, fmt.Errorf("%w: it leads through a link of /proc that stands for an open file or a process's folder (/dev/stdout is one)", err)
		}
	}
	return fd, err
}
