package api

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// Peer is the client at the other end of a connection, in the kernel's word: the
// credentials at the time of connect(2), not the client's claim (unix(7), SO_PEERCRED).
type Peer struct {
	UID, GID uint32
	// PID is 0 where the client's process cannot be seen from here (another pid
	// namespace).
	PID int32

	process *peerProcess // nil where it was not looked for: a Peer of a test
}

// Root reports whether the peer is root, who may act on every step.
func (p Peer) Root() bool { return p.UID == 0 }

// MayAct reports whether the peer may act on what belongs to a user: users act on their own
// steps and jobs, root on all.
func (p Peer) MayAct(uid uint32) bool { return p.Root() || p.UID == uid }

// PeerOf returns the client of a connection that noded has accepted, and opens its
// process for OpenProcess: later its number may be another's. The caller ends it with
// Close.
func PeerOf(c *net.UnixConn) (Peer, error) {
	cred, err := linux.PeerCred(c)
	if err != nil {
		return Peer{}, fmt.Errorf("cannot read peer credentials: %w", err)
	}
	p := Peer{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid}
	p.process, err = openPeer(c, p.PID)
	return p, err
}

// Close closes the peer's process. OpenProcess fails from then on.
func (p Peer) Close() {
	if p.process != nil {
		p.process.close()
	}
}

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
