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

// deadlineUp is a job's Deadline by the clock that is never set.
type deadlineUp struct {
	BootID string        `json:"boot_id"`
	Up     time.Duration `json:"up_ns"`
}

// limit gives the job its end, from now on.
func (j *jobRecord) limit(d time.Duration, c *clock, boot string) {
	end := c.now().Add(d)
	j.Deadline, j.DeadlineUp = &end, &deadlineUp{BootID: boot, Up: c.up() + d}
}

// goOn makes a stored Deadline one to be waited for: an older noded's is by the host's
// clock.
func (j *jobRecord) goOn(c *clock, boot string) {
	if u := j.DeadlineUp; j.Deadline != nil && u != nil && linux.SameBoot(u.BootID, boot) {
		end := c.now().Add(u.Up - c.up())
		j.Deadline = &end
	}
}
