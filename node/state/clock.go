package state

import (
	"time"

	"stepd/internal/linux"
)

// The host's clock may be set while steps run. What noded has to wait for it counts by the
// monotonic clock, and what the next noded is to go on with is stored by that clock too:
// within a boot nothing depends on the host's. After a boot no job is left to be limited.

// Clock is the source of times.
type Clock struct {
	// Now is the host's clock, and up how long the host has run.
	Now func() time.Time
	Up  func() time.Duration
}

// HostClock is the clock of this host.
func HostClock() *Clock { return &Clock{Now: time.Now, Up: linux.Uptime} }
