package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"stepd/internal/linux"
	"stepd/step"
)

// The host's clock may be set while steps run. What noded has to wait for it counts by the
// monotonic clock, and what the next noded is to go on with is stored by that clock too:
// within a boot nothing depends on the host's. After a boot no job is left to be limited.

// clock is what tells the time.
type clock struct {
	// now is the host's clock, and up how long the host has run.
	now func() time.Time
	up  func() time.Duration
}

func hostClock() *clock { return &clock{now: time.Now, up: linux.Uptime} }

// deadlineUp is a job's Deadline by the clock that nobody sets.
type deadlineUp struct {
	BootID string        `json:"boot_id"`
	Up     time.Duration `json:"up_ns"`
}

// limit gives the job its end, from now on.
func (j *jobRecord) limit(d time.Duration, c *clock, boot string) {
	end := c.now().Add(d)
	j.Deadline, j.DeadlineUp = &end, &deadlineUp{BootID: boot, Up: c.up() + d}
}

// goOn makes a Deadline that was stored one to be waited for: that of an older noded is
// one of the host's clock.
func (j *jobRecord) goOn(c *clock, boot string) {
	if u := j.DeadlineUp; j.Deadline != nil && u != nil && linux.SameBoot(u.BootID, boot) {
		end := c.now().Add(u.Up - c.up())
		j.Deadline = &end
	}
}

// keyClock has the store's clock: storeClock, JSON.
var keyClock = []byte("clock")

// storeClock is the host's clock as it was when a store was first opened in a boot. What
// is stored of ended steps is ordered by it, and so it is not set within a boot.
type storeClock struct {
	BootID string `json:"boot_id"`
	// ZeroNS is when the host began to run, in ns since 1970.
	ZeroNS int64 `json:"zero_ns"`
	// Behind: the boot before began later than this one. So this one began before its
	// clock was set, and what it knows of ends is of no use to the next.
	Behind bool `json:"behind,omitempty"`
}

// setClock makes the store's clock.
func (s *store) setClock(c *clock, boot string) error {
	err := s.update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		var is storeClock
		if err := getJSON(meta, keyClock, &is); err != nil && !errors.Is(err, errUnknown) {
			return err
		}
		s.up, s.zero = c.up, is.ZeroNS
		if is.BootID == boot {
			return nil
		}
		last := is
		s.zero = c.now().UnixNano() - int64(c.up())
		is = storeClock{BootID: boot, ZeroNS: s.zero, Behind: s.zero < last.ZeroNS}
		if err := putJSON(meta, keyClock, &is); err != nil {
			return err
		}
		from := time.Unix(0, 0)
		if !last.Behind {
			from = s.now().Add(1)
		}
		return restamp(tx, from, s.now())
	})
	if err != nil {
		return fmt.Errorf("cannot store the clock: %w", err)
	}
	return nil
}

// now is the time by which steps are forgotten.
func (s *store) now() time.Time { return time.Unix(0, s.zero+int64(s.up())) }

// restamp makes what has ended from a time on end now. What has by a clock that was ahead
// would be kept until then, and all at once be forgotten by one that was behind.
func restamp(tx *bbolt.Tx, from, now time.Time) error {
	ended := tx.Bucket(bucketEnded)
	var late [][]byte
	c := ended.Cursor()
	for k, _ := c.Seek(binary.BigEndian.AppendUint64(nil, uint64(from.UnixNano()))); k != nil; k, _ = c.Next() {
		late = append(late, append([]byte(nil), k...))
	}
	for _, k := range late {
		id := step.ID{Job: binary.BigEndian.Uint32(k[8:]), Step: binary.BigEndian.Uint32(k[12:])}
		if err := errors.Join(ended.Delete(k), ended.Put(endedKey(now, id), nil)); err != nil {
			return err
		}
	}
	return nil
}
