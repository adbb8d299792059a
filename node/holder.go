package node

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/linux"
)

// holder names the client process of an allocation for ever, as a Record does a
// stepd: pids come again.
type holder struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // clock ticks since boot
	BootID string `json:"boot_id"`
}

// openClient returns a pidfd of the process that asks; the caller closes it.
func openClient(caller api.Peer) (int, error) {
	pidfd, err := caller.OpenProcess()
	if err != nil {
		return -1, api.Errorf(api.FailedPrecondition, "cannot follow the client: %v", err)
	}
	return pidfd, nil
}

// newHolder describes the process of pidfd, whose number is pid.
func newHolder(pid int32, pidfd int, boot string) (*holder, error) {
	if pid == 0 {
		return nil, errors.New("cannot follow the client: it has no number in the pid namespace of noded's container; run stepctl in there")
	}
	h := &holder{PID: int(pid), BootID: boot}
	var err error
	if h.Start, err = linux.StartTime(h.PID); err != nil {
		return nil, err
	}
	// It lives, so that the number was its own when the time was read.
	if exited, err := linux.PidfdExited(pidfd); err != nil || exited {
		return nil, errors.Join(fmt.Errorf("cannot follow the client: process %d %w", pid, errGone), err)
	}
	return h, nil
}

// open finds the process again, or returns errGone.
func (h *holder) open(boot string) (int, error) {
	if h == nil {
		return -1, errGone
	}
	pidfd, start, err := openProcess(h.PID, h.BootID, boot)
	if err != nil {
		return -1, err
	}
	if start != h.Start {
		unix.Close(pidfd)
		return -1, errGone
	}
	return pidfd, nil
}
