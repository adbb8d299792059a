package x11

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	diagByFamily = 20  // SOCK_DIAG_BY_FAMILY
	diagUID      = 64  // of struct inet_diag_msg (sock_diag(7))
	diagReply    = 512 // more than an answer has, in bytes
)

// socketUID is the user who has made a socket of this host, which is connected to another one
// (sock_diag(7)).
func socketUID(socket, to netip.AddrPort) (uint32, error) {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return 0, fmt.Errorf("cannot ask for the user of a connection: %w", err)
	}
	defer unix.Close(s)
	b := make([]byte, diagReply)
	err = unix.Sendto(s, diagRequest(socket, to), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	n := 0
	if err == nil {
		n, err = unix.Read(s, b)
	}
	if err == nil && (n < unix.SizeofNlMsghdr+diagUID+4 || binary.NativeEndian.Uint16(b[4:]) != diagByFamily) {
		err = errors.New("the kernel does not know it")
	}
	if err != nil {
		return 0, fmt.Errorf("cannot find the user of the connection from %s: %w", socket, err)
	}
	return binary.NativeEndian.Uint32(b[unix.SizeofNlMsghdr+diagUID:]), nil
}

// diagRequest asks for one socket: struct inet_diag_req_v2 behind a header.
func diagRequest(local, remote netip.AddrPort) []byte {
	family := byte(unix.AF_INET6)
	if local.Addr().Is4() {
		family = unix.AF_INET
	}
	b := make([]byte, unix.SizeofNlMsghdr, 128)
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, ^uint32(0)) // in any state
	b = binary.BigEndian.AppendUint16(b, local.Port())
	b = binary.BigEndian.AppendUint16(b, remote.Port())
	for _, at := range []netip.AddrPort{local, remote} {
		addr := at.Addr().AsSlice()
		b = append(append(b, addr...), make([]byte, 16-len(addr))...)
	}
	b = binary.NativeEndian.AppendUint32(b, 0)          // on any interface
	b = binary.NativeEndian.AppendUint64(b, ^uint64(0)) // INET_DIAG_NOCOOKIE
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], diagByFamily)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	return b
}
