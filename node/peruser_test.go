package node

import (
	"testing"
	"time"

	"stepd/node/selection"
	"stepd/step"
)

func TestPerUserReplay(t *testing.T) {
	r := testRegistry([]int{0}, selection.Memory{}, nil)
	r.users.limits.ReplayBytes = 250
	for _, want := range []int64{100, 100, 50, 0} {
		if got := r.users.keepReplay(1000, 100); got != want {
			t.Errorf("kept %d, want %d", got, want)
		}
	}
	if got := r.users.keepReplay(0, 1000); got != 1000 {
		t.Errorf("root: %d", got)
	}
	r.users.dropReplay(1000, 100)
	if got := r.users.keepReplay(1000, 100); got != 100 {
		t.Errorf("after a step has ended: %d", got)
	}
	tn := start(t, t.TempDir(), func(c *Config) { c.Site.ReplayBytes, c.PerUser.ReplayBytes = 100, 150 })
	defer func() { tn.stop() }()
	first, second := tn.run(1000, request("wait")), tn.run(1000, request("wait"))
	if a, b := tn.reg.follower(first).replay, tn.reg.follower(second).replay; a != 100 || b != 50 {
		t.Errorf("two steps keep %d and %d", a, b)
	}
	for _, id := range []step.ID{first, second} {
		if err := tn.cancel(id); err != nil {
			t.Error(err)
		}
		tn.wait(id)
	}
	for deadline := time.Now().Add(testTimeout); len(tn.reg.followers()) > 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if tn.reg.users.mu.Lock(); len(tn.reg.users.replay) > 0 {
		t.Errorf("bytes are still counted: %v", tn.reg.users.replay)
	}
	tn.reg.users.mu.Unlock()
}

// TestShellReplayOverRestart: what the interactive step of an allocation may keep of its
// output counts as before the restart.
func TestShellReplayOverRestart(t *testing.T) {
	limits := func(c *Config) { c.Site.ReplayBytes, c.PerUser.ReplayBytes = 100, 150 }
	tn := start(t, t.TempDir(), limits)
	defer func() { tn.stop() }()
	job, err := tn.alloc(newClient(t, 1000), nil)
	if err != nil {
		t.Fatal(err)
	}
	shell := request("wait")
	shell.Job, shell.Interactive = &job, true
	id := tn.run(1000, shell)
	tn.until(id, step.Running)
	tn.stop()
	tn = start(t, tn.dir, limits)
	if got := tn.reg.follower(tn.run(1000, request("wait"))).replay; got != 50 {
		t.Errorf("beside a shell, which keeps 100 of 150 bytes, another step keeps %d", got)
	}
	if err := tn.cancel(id); err != nil {
		t.Error(err)
	}
	tn.wait(id)
}
