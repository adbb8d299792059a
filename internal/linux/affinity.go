package linux

import (
	"errors"
	"fmt"
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
