package guest

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// setClock sets the host's clock, and at the end of the test puts it right.
func setClock(t *testing.T) (by func(time.Duration)) {
	t.Helper()
	right := time.Now() // with a reading of the clock that is never set
	ahead := func(d time.Duration) {
		now := right.Round(0).Add(time.Since(right) + d)
		tv := syscall.NsecToTimeval(now.UnixNano())
		if err := syscall.Settimeofday(&tv); err != nil {
			t.Fatalf("cannot set the clock: %v", err)
		}
	}
	t.Cleanup(func() { ahead(0) })
	return ahead
}

// TestGuestClock: the host's clock is set back and forward, with noded running and over
// its restart: time limits of steps and of jobs neither come early nor are put off, steps
// without one go on, and the node serves.
func TestGuestClock(t *testing.T) {
	startUnit(t)
	ahead := setClock(t)
	const limit = 6 * time.Second
	began := time.Now()
	s := startStep(t, "free", 1)
	limited := startStep(t, "limited", 1, "-t", "0:06")
	alloc := exec.Command("stepctl", "alloc", "-Q", "-O", "-t", "0:06", "sleep", "600")
	if err := alloc.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- alloc.Wait() }()
	ahead(-time.Hour)
	systemctl(t, "restart", "noded")
	s.known(t)
	ahead(time.Hour)
	systemctl(t, "restart", "noded")
	ahead(0)
	for what, ended := range map[string]func() bool{
		"the limited step": func() bool { <-limited.ended; return true },
		"the allocation":   func() bool { <-over; return true },
	} {
		done := make(chan bool, 1)
		go func() { done <- ended() }()
		select {
		case <-done:
			if ran := time.Since(began); ran < limit {
				t.Errorf("%s has ended after %v", what, ran)
			}
		case <-time.After(limit + soon):
			t.Errorf("%s does not end", what)
		}
	}
	if d := find(t, limited.JobID); d.State != "TIMEOUT" {
		t.Errorf("the limited step: %+v", d)
	}
	s.known(t)
	s.alive(t)
	s.finish(t)
}

// find is a job's step of which there is one.
func find(t *testing.T, job int) doc {
	t.Helper()
	var found doc
	err := errors.New("there is none")
	for _, d := range steps(t, "--all") {
		if d.JobID == job {
			found, err = d, nil
		}
	}
	if err != nil {
		t.Fatalf("step of job %d: %v", job, err)
	}
	return found
}
