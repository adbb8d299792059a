package node

import (
	"errors"
	"fmt"

	"stepd/api"
	"stepd/internal/linux"
	"stepd/node/child"
	"stepd/node/state"
)

// openClient returns a pidfd of the process that asks; the caller closes it.
func openClient(caller api.Peer) (int, error) {
	pidfd, err := caller.OpenProcess()
	if err != nil {
		return -1, api.Errorf(api.FailedPrecondition, "cannot follow the client: %v", err)
	}
	return pidfd, nil
}

// newHolder describes the process of pidfd, whose number is pid.
func newHolder(pid int32, pidfd int, boot string) (*state.Process, error) {
	if pid == 0 {
		return nil, errors.New("cannot follow the client: it has no number in the pid namespace of noded's container; run stepctl in there")
	}
	h := &state.Process{PID: int(pid), BootID: boot}
	var err error
	if h.Start, err = linux.StartTime(h.PID); err != nil {
		return nil, err
	}
	// It lives, so that the number was its own when the time was read.
	if exited, err := linux.PidfdExited(pidfd); err != nil || exited {
		return nil, errors.Join(fmt.Errorf("cannot follow the client: process %d %w", pid, child.ErrGone), err)
	}
	return h, nil
}

// openHolder finds the process again, or returns child.ErrGone.
func openHolder(h *state.Process, boot string) (int, error) {
	if h == nil {
		return -1, child.ErrGone
	}
	return child.Open(h.PID, h.Start, h.BootID, boot)
}
