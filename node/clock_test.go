package node

import (
	"sync"
	"testing"
	"time"

	"stepd/api"
	"stepd/node/state"
	"stepd/step"
)

// testClock is a host's clock that a test sets.
type testClock struct {
	mu   sync.Mutex
	wall time.Time     // guarded by mu
	run  time.Duration // guarded by mu
}

func (c *testClock) clock() *state.Clock {
	return &state.Clock{
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

// TestClockSetDeadline: the next noded counts what is left of a job's time by no clock that
// was set meanwhile.
func TestClockSetDeadline(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]time.Duration{"back": -5 * time.Hour, "forward": 5 * time.Hour, "not": 0} {
		t.Run(name, func(t *testing.T) {
			dir, c := t.TempDir(), &testClock{wall: time.Now(), run: time.Hour}
			with := func(cfg *Config) { cfg.clock = c.clock() }
			tn := start(t, dir, with)
			req := request("wait")
			req.TimeLimitS = 3600
			id := tn.run(1000, req)
			tn.until(id, step.Running)
			left := func() time.Duration { return tn.reg.job(id.Job).Deadline.Sub(c.clock().Now()) }
			if got := left(); got != time.Hour {
				t.Errorf("the job has %v", got)
			}
			tn.stop()
			c.pass(time.Minute, set)
			tn = start(t, dir, with)
			t.Cleanup(func() { tn.stop() })
			if got := left(); got != 59*time.Minute {
				t.Errorf("a minute later the job has %v", got)
			}
			inner := request("exit", "0")
			inner.Job = &id.Job
			if rec := tn.wait(tn.run(1000, inner)); rec.TimeLimitS > 3600 || rec.TimeLimitS <= 0 {
				t.Errorf("a step of it has %d s", rec.TimeLimitS)
			}
			if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); err != nil {
				t.Fatal(err)
			}
			tn.wait(id)
		})
	}
}
