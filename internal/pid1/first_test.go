package pid1

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

// life is a process 1 whose nodeds end as they are told, one after the other.
type life struct {
	first
	nodeds []func() (syscall.WaitStatus, error)
	served int
	ended  int
}

func newLife(nodeds ...func() (syscall.WaitStatus, error)) *life {
	l := &life{nodeds: nodeds}
	l.log = logrus.New()
	l.log.SetOutput(io.Discard)
	l.signals, l.pause = make(chan os.Signal, 4), time.Nanosecond
	l.serve = func() (syscall.WaitStatus, error) {
		l.served++
		return l.nodeds[min(l.served, len(l.nodeds))-1]()
	}
	l.end = func() { l.ended++ }
	return l
}

var errFork = errors.New("fork: resource temporarily unavailable")

func unstarted() (syscall.WaitStatus, error) { return 0, errFork }
func killed() (syscall.WaitStatus, error)    { return syscall.WaitStatus(syscall.SIGKILL), nil }

func exited(code int) func() (syscall.WaitStatus, error) {
	return func() (syscall.WaitStatus, error) { return syscall.WaitStatus(code << 8), nil }
}

// TestFirstProcessRuns: whatever becomes of noded, what runs in the container ends by
// end, once, and not for something that may pass.
func TestFirstProcessRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		nodeds []func() (syscall.WaitStatus, error)
		served int
		err    error
	}{
		"it ends":                    {[]func() (syscall.WaitStatus, error){exited(0)}, 1, Exit(0)},
		"it refuses its files":       {[]func() (syscall.WaitStatus, error){exited(1)}, 1, Exit(1)},
		"a crash, and its end":       {[]func() (syscall.WaitStatus, error){killed, exited(0)}, 2, Exit(0)},
		"a panic, and its end":       {[]func() (syscall.WaitStatus, error){exited(2), exited(0)}, 2, Exit(0)},
		"it cannot be started twice": {[]func() (syscall.WaitStatus, error){killed, unstarted, unstarted, exited(0)}, 4, Exit(0)},
		"its spool is not there":     {[]func() (syscall.WaitStatus, error){killed, exited(1), exited(1), exited(0)}, 4, Exit(0)},
		"it can never be started":    {[]func() (syscall.WaitStatus, error){unstarted}, crashesMax, Exit(1)},
		"it always crashes":          {[]func() (syscall.WaitStatus, error){killed}, crashesMax, Exit(137)},
	} {
		l := newLife(tc.nodeds...)
		if err := l.run(); !errors.Is(err, tc.err) || l.served != tc.served || l.ended != 1 {
			t.Errorf("%s: %v after %d starts, ended %d times; want %v, %d, once", name, err, l.served, l.ended, tc.err, tc.served)
		}
	}
}

// TestFirstProcessToldInPause: who ends the container does not wait for another noded.
func TestFirstProcessToldInPause(t *testing.T) {
	l := newLife(unstarted)
	l.pause = time.Hour
	l.signals <- syscall.SIGHUP
	l.signals <- syscall.SIGTERM
	if err := l.run(); !errors.Is(err, Exit(1)) || l.served != 1 || l.ended != 1 {
		t.Errorf("%v after %d starts, ended %d times", err, l.served, l.ended)
	}
}

// TestFirstProcessForgets: crashes of long ago are none.
func TestFirstProcessForgets(t *testing.T) {
	l := newLife(killed, exited(1))
	for range 2 * crashesMax {
		l.crashes = append(l.crashes, time.Now().Add(-time.Minute))
	}
	if !l.again(killed()) || len(l.crashes) != 1 {
		t.Errorf("after a minute %d crashes count", len(l.crashes))
	}
	l.crashes[0] = l.crashes[0].Add(-time.Minute)
	if l.again(exited(1)()) {
		t.Error("it ended by itself a minute after a crash, and is started again")
	}
}
