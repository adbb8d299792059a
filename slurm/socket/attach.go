package socket

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"stepd/slurm/wire"
)

// Attachment is a client that wants what the tasks write, may send them input, and is told their
// ends (sattach).
type Attachment struct {
	// Release is the client's.
	Release wire.Release
	// Streams is where it waits for the streams, and Ends where for the tasks' ends.
	Streams, Ends netip.AddrPort
	// Key is by which it knows the step daemon that connects to it. It is a secret.
	Key []byte
	// UID is its user, whom slurmd has let attach.
	UID uint32
	// secured says that it waits for encrypted messages.
	secured bool
}

// addressSize is the size of an address as a sockaddr_storage (unix(7)).
const addressSize = 128

// readAttachment reads the arguments of reqAttach.
func readAttachment(v wire.Release, r *fields) *Attachment {
	a := new(Attachment)
	if v >= wire.V2505 {
		a.secured = len(r.sized()) > 0 // the client's certificate
	}
	a.Streams, a.Ends = address(r.bytes(addressSize)), address(r.bytes(addressSize))
	a.Key = r.sized()
	a.UID = uint32(r.int())
	a.Release = wire.Release(binary.NativeEndian.Uint16(r.bytes(2)))
	return a
}

// address reads a sockaddr_storage; the zero value is one of no internet.
func address(b []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port)
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:])), port)
	}
	return netip.AddrPort{}
}

// attach answers reqAttach: 0 and the tasks, or an error.
func (s *Server) attach(c *net.UnixConn, uid uint32, a *Attachment) error {
	err := s.mayAttach(uid, a)
	if err == nil {
		err = s.handler.Attach(*a)
	}
	if err != nil {
		_, errno := result(err)
		return reply(c, errno)
	}
	tasks := s.handler.Tasks()
	var pids, ranks, names []byte
	for _, t := range tasks {
		pids = binary.NativeEndian.AppendUint32(pids, uint32(t.PID))
		ranks = binary.NativeEndian.AppendUint32(ranks, t.Rank)
		names = binary.NativeEndian.AppendUint32(names, uint32(len(t.Program)+1))
		names = append(append(names, t.Program...), 0)
	}
	return reply(c, int32(0), uint32(len(tasks)), pids, ranks, names)
}

// mayAttach returns why a client may not attach, or the step not take it.
func (s *Server) mayAttach(uid uint32, a *Attachment) error {
	switch {
	case !s.trusts(uid):
		return s.deny(uid, reqAttach)
	case a.secured:
		return errNotSupported
	case !a.Release.Known() || !a.Streams.IsValid() || !a.Ends.IsValid():
		return unix.EINVAL
	case s.handler.State() != Running:
		return ErrNotRunning
	}
	return nil
}
