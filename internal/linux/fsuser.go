package linux

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

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
