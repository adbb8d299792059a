package linux

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

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
