package node

import (
	"time"

	"stepd/internal/linux"
)

// The host's clock may be set while steps run. What noded has to wait for it counts by the
// monotonic clock, and what the next noded is to go on with is stored by that clock too:
// within a boot nothing depends on the host's. After a boot no job is left to be limited.

// clock is the source of times.
type clock struct {
	// now is the host's clock, and up how long the host has run.
	now func() time.Time
	up  func() time.Duration
}

func hostClock() *clock { return &clock{now: time.Now, up: linux.Uptime} }
