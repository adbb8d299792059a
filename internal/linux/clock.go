package linux

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Uptime is how long the host has run, by the clock that nobody sets
// (CLOCK_MONOTONIC, clock_gettime(2)): all processes of a boot read the same one.
func Uptime() time.Duration {
	var ts unix.Timespec
	// It fails for no clock that there is.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return time.Duration(ts.Nano())
}

// ClockWatch tells when the host's clock was set. Make it with NewClockWatch, and end it
// with Close.
type ClockWatch struct {
	timer *os.File
	last  time.Time
}

// NewClockWatch begins to watch.
func NewClockWatch() (*ClockWatch, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch the clock: %w", err)
	}
	w := &ClockWatch{timer: os.NewFile(uintptr(fd), "clock"), last: time.Now()}
	if err := w.arm(); err != nil {
		w.timer.Close()
		return nil, err
	}
	return w, nil
}

// arm sets a timer that never goes off: it is cancelled when the clock is set
// (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET).
func (w *ClockWatch) arm() error {
	conn, err := w.timer.SyscallConn()
	if err != nil {
		return fmt.Errorf("cannot watch the clock: %w", err)
	}
	never := unix.ItimerSpec{Value: unix.Timespec{Sec: math.MaxInt64 / int64(time.Second)}}
	var set error
	if err := conn.Control(func(fd uintptr) {
		set = unix.TimerfdSettime(int(fd), unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, &never, nil)
	}); err != nil {
		return fmt.Errorf("cannot watch the clock: %w", err)
	}
	// ECANCELED: the timer is set, and the clock was too since the last Read.
	if set != nil && !errors.Is(set, unix.ECANCELED) {
		return fmt.Errorf("cannot watch the clock: %w", set)
	}
	return nil
}

// Wait returns when the clock was set since the last call, and by how much: forward is
// more than 0. The error wraps os.ErrClosed after Close.
func (w *ClockWatch) Wait() (by time.Duration, err error) {
	for {
		_, err := w.timer.Read(make([]byte, 8))
		if err != nil && !errors.Is(err, unix.ECANCELED) {
			return 0, fmt.Errorf("cannot watch the clock: %w", err)
		}
		if err := w.arm(); err != nil {
			return 0, err
		}
		now := time.Now()
		by = now.Round(0).Sub(w.last.Round(0)) - now.Sub(w.last)
		w.last = now
		if err != nil { // else the timer has gone off, in the year 2262
			return by, nil
		}
	}
}

// Close ends a Wait.
func (w *ClockWatch) Close() error { return w.timer.Close() }
