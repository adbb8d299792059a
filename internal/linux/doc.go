// Package linux wraps the system calls that Go's standard library does not
// offer in the form that the daemons need: pidfds, waits that a context ends,
// and the one reaper of a process. It retries EINTR, and it decides nothing.
//
// Begin with Poller for "wait until the kernel says so", with PidfdOpen for
// processes that are not to be mixed up, and with Reaper in a process that
// adopts orphans.
package linux

import (
	"errors"

	"golang.org/x/sys/unix"
)

// IgnoringEINTR calls f until it returns something else than EINTR. Go's own
// preemption signals interrupt slow system calls at any time.
func IgnoringEINTR(f func() error) error {
	for {
		err := f()
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Uninterrupted is IgnoringEINTR for a call with a result.
func Uninterrupted[T any](f func() (T, error)) (result T, err error) {
	err = IgnoringEINTR(func() (err error) {
		result, err = f()
		return err
	})
	return result, err
}
