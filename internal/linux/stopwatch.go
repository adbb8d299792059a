package linux

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// StopWatch notices that a child of this process stands still, stopped by a signal, for longer than
// a limit. One that a debugger holds is not stopped for its parent (waitid(2), ptrace(2)). Only one
// goroutine uses it.
type StopWatch struct {
	stopped func() bool
	limit   time.Duration
	// MayBe is sent when a child may have been stopped, or have gone on: Look is then due.
	MayBe chan os.Signal
	// Late is sent when it has been stopped for too long: Over is then due. It is nil while it
	// is not stopped.
	Late <-chan time.Time
}

// NewStopWatch watches the child of which stopped reports whether it is stopped (ChildStopped).
func NewStopWatch(limit time.Duration, stopped func() bool) *StopWatch {
	w := &StopWatch{stopped: stopped, limit: limit, MayBe: make(chan os.Signal, 1)} // size 1: a look sees all
	signal.Notify(w.MayBe, syscall.SIGCHLD)
	return w
}

// End ends the watch.
func (w *StopWatch) End() { signal.Stop(w.MayBe) }

// Look begins to count where the child is stopped, which it reports, and ends that where it is
// not any more.
func (w *StopWatch) Look() (begun bool) {
	switch stopped := w.stopped(); {
	case !stopped:
		w.Late = nil
	case w.Late == nil:
		w.Late = time.After(w.limit)
		return true
	}
	return false
}

// Over reports whether the child is stopped still.
func (w *StopWatch) Over() bool {
	w.Late = nil
	return w.stopped()
}
