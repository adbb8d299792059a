package linux

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
)

// TestRootClockSetAgain: the clock may be set again before the watch goes on.
func TestRootClockSetAgain(t *testing.T) {
	testkit.RequireRoot(t)
	w, err := NewClockWatch()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	// By a microsecond, forth and back: whoever watches hears of it, and it hurts nobody.
	by := unix.Timeval{Usec: 1}
	set := func() {
		t.Helper()
		_, err := unix.ClockAdjtime(unix.CLOCK_REALTIME, &unix.Timex{Modes: unix.ADJ_SETOFFSET, Time: by})
		if errors.Is(err, unix.EPERM) {
			t.Skip("root may not set the clock here (CAP_SYS_TIME)")
		}
		if err != nil {
			t.Fatalf("cannot set the clock: %v", err)
		}
		by = unix.Timeval{Sec: -1 - by.Sec, Usec: 1e6 - by.Usec}
	}
	set()
	if err := w.arm(); err != nil {
		t.Errorf("after the clock was set: %v", err)
	}
	set()
	if by, err := w.Wait(); err != nil || by.Abs() > time.Second {
		t.Errorf("it was set by a microsecond: %v, %v", by, err)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if _, err := w.Wait(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after its end: %v", err)
	}
}
