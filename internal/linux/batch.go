package linux

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// BatchThread makes the calling goroutine's thread its own, and one that takes the
// processor from nobody when it is woken (SCHED_BATCH, sched(7)): it gets it when it is
// free, or when its turn comes. So a thread that passes bytes on finds many of them,
// and not the first few, where the processors are busy. The thread ends with the
// goroutine.
func BatchThread() error {
	runtime.LockOSThread()
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_BATCH}, 0); err != nil {
		return fmt.Errorf("cannot set the scheduling policy SCHED_BATCH: %w", err)
	}
	return nil
}
