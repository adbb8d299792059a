package jobcontainer

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// nsGetMountID is NS_GET_MNTNS_ID (linux/nsfs.h, Linux 6.11).
const nsGetMountID = 0x8008b705

// unshareMounts gives the calling thread, which must be disposable, a mount namespace
// that can be pinned in noded's.
//
// A mount namespace can be bound only in one with a lower number (fs/namespace.c,
// mnt_ns_loop). Since Linux 6.18 each CPU deals numbers from a lot of its own
// (kernel/nstree.c), so that a namespace that is made later may have a lower one.
// noded's own is beyond the first one's where it runs in a container, and a CPU is
// looked for then whose numbers are higher: the CPU of noded's own namespace is one.
func unshareMounts() error {
	own, _ := mountID("/proc/self/ns/mnt") // 0, and none is lower, where it is not known
	return unshareAbove(own)
}

// unshareAbove makes a mount namespace of a higher number than own.
func unshareAbove(own uint64) error {
	younger := func() (bool, error) {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return false, err
		}
		made, known := mountID("/proc/thread-self/ns/mnt")
		return !known || made > own, nil
	}
	if ok, err := younger(); ok || err != nil {
		return err
	}
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return err
	}
	for cpu := range len(all) * 64 {
		if !all.IsSet(cpu) {
			continue
		}
		one.Zero()
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return err
		}
		if ok, err := younger(); ok || err != nil {
			// What the thread starts may run anywhere.
			return errors.Join(err, unix.SchedSetaffinity(0, &all))
		}
	}
	return fmt.Errorf("none of noded's CPUs numbers it higher than noded's own (%d), in which it is to be held", own)
}

// mountID is the number of the mount namespace at path; false where the kernel does not
// tell.
func mountID(path string) (uint64, bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	id, err := unix.IoctlGetInt(int(f.Fd()), nsGetMountID) // into 64 bits
	return uint64(id), err == nil
}
