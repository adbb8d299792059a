package api

import (
	"fmt"
	"net"
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
