package linux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

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
