package state

import (
	"slices"
	"sync"
	"testing"
	"time"

	"stepd/step"
)

// testClock is a host's clock that a test sets.
type testClock struct {
	mu   sync.Mutex
	wall time.Time     // guarded by mu
	run  time.Duration // guarded by mu
}

func (c *testClock) clock() *Clock {
	return &Clock{
		Now: func() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.wall },
		Up:  func() time.Duration { c.mu.Lock(); defer c.mu.Unlock(); return c.run },
	}
}

// pass lets time pass, and sets the clock by more than that.
func (c *testClock) pass(d, set time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall, c.run = c.wall.Add(d+set), c.run+d
}

// TestDeadlineOfAnother: a deadline of another boot, or of an older noded, is what it says.
func TestDeadlineOfAnother(t *testing.T) {
	now := time.Unix(1000, 0)
	c := (&testClock{wall: now, run: time.Minute}).clock()
	for name, u := range map[string]*Uptime{"older": nil, "boot": {BootID: "other", Up: 2 * time.Minute}} {
		end := now.Add(time.Second)
		j := Job{Deadline: &end, DeadlineUp: u}
		if j.GoOn(c, "this"); !j.Deadline.Equal(now.Add(time.Second)) {
			t.Errorf("%s: %v", name, j.Deadline)
		}
	}
	none := Job{}
	if none.GoOn(c, "this"); none.Deadline != nil {
		t.Error("a deadline out of nothing")
	}
}

// TestClockSetForget: steps are kept for MinJobAge of true time, whatever is done to the
// clock in a boot, or over one.
func TestClockSetForget(t *testing.T) {
	at, c := newStates(t, 1), &testClock{wall: time.Unix(1e9, 0), run: time.Hour}
	at.cfg.Clock = c.clock()
	s := at.open()
	end := func() (gone []uint32) {
		t.Helper()
		job, rec := Job{}, step.Record{State: step.Completed}
		if _, err := s.NewJobAs(step.ID{}, &job, nil, &rec); err != nil {
			t.Fatal(err)
		}
		ids, err := s.Finish(&rec)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			gone = append(gone, id.Job)
		}
		return gone
	}
	want := func(what string, got []uint32, jobs ...uint32) {
		t.Helper()
		if !slices.Equal(got, jobs) {
			t.Errorf("%s: jobs %d are forgotten, want %d", what, got, jobs)
		}
	}
	want("the first", end())
	c.pass(time.Second, 5*time.Hour)
	want("an hour forward", end())
	c.pass(time.Second, -10*time.Hour)
	want("hours back", end())
	s = at.reopen(s, at.cfg.Boot)
	c.pass(297*time.Second, 0)
	want("before MinJobAge", end())
	c.pass(time.Second+time.Millisecond, 0)
	want("after MinJobAge", end(), 1)
	// The next boot is in the past, and the run directory is on a disk: what there is counts
	// as ended at its begin.
	c.pass(-time.Hour, -30*24*time.Hour)
	at.cfg.Boot = "second"
	s = at.reopen(s, "second")
	c.pass(299*time.Second, 0)
	if got := end(); len(got) != 0 {
		t.Errorf("in the next boot: jobs %d are forgotten", got)
	}
	s = at.reopen(s, "second")
	c.pass(time.Second+time.Millisecond, 0)
	if got := end(); len(got) != 4 || slices.Max(got) != 5 {
		t.Errorf("after MinJobAge of that: jobs %d are forgotten", got)
	}
}
