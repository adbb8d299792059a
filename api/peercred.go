package api

import (
	"context"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
)

// Peer is who is at the other end of a connection, in the kernel's word: the
// credentials at the time of connect(2), not the client's claim (unix(7),
// SO_PEERCRED). A Peer of noded's side is the client, and the other way round.
type Peer struct {
	credentials.CommonAuthInfo
	UID, GID uint32
	// PID is 0 where the peer's process cannot be seen from here (another pid
	// namespace).
	PID int32

	// Refusal is why its calls are answered with nothing else; "" is that they are served.
	Refusal string

	process *peerProcess // nil where it was not looked for: a Peer of a test
}

// AuthType names the mechanism, as gRPC wants.
func (Peer) AuthType() string { return "SO_PEERCRED" }

// Root tells whether the peer is root, who may act on every step.
func (p Peer) Root() bool { return p.UID == 0 }

// PeerOf returns the caller of the method that ctx belongs to. It fails where
// the server was not made with Credentials: nobody is ever assumed.
func PeerOf(ctx context.Context) (Peer, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return Peer{}, errors.New("internal error: call without a peer")
	}
	cred, ok := p.AuthInfo.(Peer)
	if !ok {
		return Peer{}, errors.New("internal error: connection without peer credentials")
	}
	return cred, nil
}

// Credentials returns transport credentials that put a Peer into the
// connection's AuthInfo. They accept unix sockets only, for both sides.
func Credentials() credentials.TransportCredentials { return peerCredentials{} }

type peerCredentials struct{}

// ServerHandshake also opens the client's process, for OpenProcess: later its
// number may be another's.
func (peerCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p, err := peerOfConn(c)
	if err != nil {
		return nil, nil, err
	}
	if p.process, err = openPeer(c.(*net.UnixConn), p.PID); err != nil {
		return nil, nil, err
	}
	return &peerConn{Conn: c, process: p.process}, p, nil
}

func (peerCredentials) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	p, err := peerOfConn(c)
	if err != nil {
		return nil, nil, err
	}
	return c, p, nil
}

func (peerCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "SO_PEERCRED"}
}

func (peerCredentials) Clone() credentials.TransportCredentials { return peerCredentials{} }

// OverrideServerName has nothing to override: no name is verified.
func (peerCredentials) OverrideServerName(string) error { return nil }

func peerOfConn(c net.Conn) (Peer, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, fmt.Errorf("cannot read peer credentials of a %s connection: want a unix socket", c.LocalAddr().Network())
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("cannot read peer credentials: %w", err)
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return Peer{}, fmt.Errorf("cannot read peer credentials: %w", err)
	}
	if credErr != nil {
		return Peer{}, fmt.Errorf("cannot read peer credentials: %w", credErr)
	}
	return Peer{
		// What passes stays within this kernel.
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		UID:            cred.Uid, GID: cred.Gid, PID: cred.Pid,
	}, nil
}
