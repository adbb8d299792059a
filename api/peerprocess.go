package api

import (
	"errors"
	"fmt"
	"net"
	"stepd/internal/linux"
	"sync"

	"golang.org/x/sys/unix"
)

// ErrNoProcess is wrapped by OpenProcess's error where the peer is gone, or
// cannot be seen from this pid namespace.
var ErrNoProcess = errors.New("no such process")

// peerProcess is the process that connected, as long as its connection is open.
type peerProcess struct {
	mu    sync.Mutex
	pidfd int // guarded by mu: -1 when it is gone, or the connection closed
}

// openPeer opens the process at the other end. Where the kernel cannot name it
// for certain (before Linux 6.5), the pid of its credentials does: it is of this moment, since the
// client waits for its connection to be served.
func openPeer(c *net.UnixConn, pid int32) (*peerProcess, error) {
	pidfd := -1
	var pidErr error
	err := linux.OnFD(c, func(fd int) error {
		pidfd, pidErr = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open the peer's process: %w", err)
	}
	if pidErr == unix.ENOPROTOOPT && pid > 0 {
		pidfd, pidErr = unix.PidfdOpen(int(pid), 0)
	}
	if pidErr != nil {
		pidfd = -1 // it is gone, or in a namespace that we do not see
	}
	return &peerProcess{pidfd: pidfd}, nil
}

func (p *peerProcess) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd >= 0 {
		unix.Close(p.pidfd)
		p.pidfd = -1
	}
}

// OpenProcess returns a pidfd (close-on-exec) of the process that made the
// connection; the caller closes it. The error wraps ErrNoProcess where there is
// none. During a call the connection exists, and so does the process's name.
func (p Peer) OpenProcess() (int, error) {
	if p.process == nil {
		fd, err := unix.PidfdOpen(int(p.PID), 0)
		if err != nil {
			return -1, fmt.Errorf("cannot open the peer's process %d: %w: %w", p.PID, ErrNoProcess, err)
		}
		return fd, nil
	}
	p.process.mu.Lock()
	defer p.process.mu.Unlock()
	if p.process.pidfd < 0 {
		return -1, fmt.Errorf("cannot open the peer's process %d: %w", p.PID, ErrNoProcess)
	}
	fd, err := unix.FcntlInt(uintptr(p.process.pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot open the peer's process %d: %w", p.PID, err)
	}
	return fd, nil
}
