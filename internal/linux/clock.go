package linux

import (
	"time"

	"golang.org/x/sys/unix"
)

// Uptime is how long the host has run, by the clock that is never set
// (CLOCK_MONOTONIC, clock_gettime(2)): all processes of a boot read the same one.
func Uptime() time.Duration {
	var ts unix.Timespec
	// It fails for no clock that there is.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}
