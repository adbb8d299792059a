package linux

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// PidfdOpen returns a descriptor (close-on-exec) that names the process pid,
// a thread group leader, until it is closed, whatever becomes of the number.
// ESRCH: there is no such process. Linux 5.3.
func PidfdOpen(pid int) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	// Until Linux 6.15 the number of a reaped process that others still have as
	// their session or group, or that is a thread's, gives EINVAL (kernel/fork.c,
	// pidfd_prepare); since then it is ESRCH, and ENOENT for the thread's.
	if pid > 0 && (err == unix.EINVAL || err == unix.ENOENT) {
		err = unix.ESRCH
	}
	if err != nil {
		return -1, fmt.Errorf("cannot open a pidfd of process %d: %w", pid, err)
	}
	return fd, nil
}

// PidfdSignal sends sig to the process. ESRCH: it is gone and reaped.
func PidfdSignal(pidfd int, sig syscall.Signal) error {
	err := IgnoringEINTR(func() error { return unix.PidfdSendSignal(pidfd, sig, nil, 0) })
	if err != nil {
		return fmt.Errorf("cannot send %s through a pidfd: %w", unix.SignalName(sig), err)
	}
	return nil
}

// PidfdExited reports whether all threads of the process have ended. A zombie
// has, except one whose leader ended before its other threads.
func PidfdExited(pidfd int) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := Uninterrupted(func() (int, error) { return unix.Poll(fds, 0) })
	if err != nil {
		return false, fmt.Errorf("cannot poll a pidfd: %w", err)
	}
	return n > 0, nil
}

// PidfdWait returns when all the processes have ended (as PidfdExited means
// it), or with ctx's cause. It reaps none.
func PidfdWait(ctx context.Context, pidfds ...int) error {
	// EPOLLONESHOT: a pidfd stays readable, each is to be counted once.
	p, err := NewPoller(unix.EPOLLIN|unix.EPOLLONESHOT, pidfds...)
	if err != nil {
		return err
	}
	defer p.Close()
	left := len(pidfds)
	return p.Wait(ctx, func(ready []int) (bool, error) {
		left -= len(ready)
		return left == 0, nil
	})
}

// IsGone reports whether err says that a process does not exist (any more).
func IsGone(err error) bool { return errors.Is(err, unix.ESRCH) }
