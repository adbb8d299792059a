package socket

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/slurm/wire"
)

// Names are what nss_slurm tells a task's programs of the user, without a name service. The zero
// value has no answer for any question.
type Names struct {
	// User is "" where the credential has no name.
	User               string
	UID, GID           uint32
	Gecos, Home, Shell string
	Groups             []UserGroup
	// Host finds the address of a node of the job, by its name; nil knows none.
	Host func(node string) (netip.Addr, bool)
}

// UserGroup is a group of the user's.
type UserGroup struct {
	Name string
	GID  uint32
}

// What a question of nss_slurm's is about: the first is for the name service, the second lists
// what there is for root's programs, the third for the step's.
const (
	askNamed = iota // by name or number, of a process of the step
	askAll          // whatever is asked for, of any process
	askStep         // whatever is asked for, of a process of the step
)

// Bits of a question for a host.
const (
	hostOfAny = 1 << iota // also of a process that is none of the step's
	hostIPv4
	hostIPv6
)

// within reports whether the client is a process of the step.
func (s *Server) within(c *net.UnixConn) bool {
	cred, err := linux.PeerCred(c)
	return err == nil && slices.Contains(s.handler.PIDs(), int(cred.Pid))
}

// passwd is the answer to reqPasswd.
func (s *Server) passwd(c *net.UnixConn, q request) []byte {
	n := &s.conf.Names
	named := uint32(q.id) == n.UID || q.text == n.User
	if n.User == "" || !(q.mode == askAll || (q.mode == askStep || q.mode == askNamed && named) && s.within(c)) {
		return nativeInts(0)
	}
	b := appendTexts(nativeInts(1), n.User, s.password())
	b = binary.NativeEndian.AppendUint32(b, n.UID)
	b = binary.NativeEndian.AppendUint32(b, n.GID)
	return appendTexts(b, n.Gecos, n.Home, n.Shell)
}

// password stands where a password is not.
func (s *Server) password() string {
	if s.conf.Release >= wire.V2411 {
		return "*"
	}
	return "x"
}

// groups is the answer to reqGroup.
func (s *Server) groups(c *net.UnixConn, q request) []byte {
	n := &s.conf.Names
	if q.mode < askNamed || q.mode > askStep || q.mode != askAll && !s.within(c) {
		return nativeInts(0)
	}
	var b []byte
	count := int32(0)
	for _, g := range n.Groups {
		if q.mode == askNamed && (count > 0 || uint32(q.id) != g.GID && q.text != g.Name) {
			continue
		}
		count++
		b = appendTexts(b, g.Name, s.password())
		b = binary.NativeEndian.AppendUint32(b, g.GID)
		b = appendTexts(b, n.User)
	}
	return append(nativeInts(count), b...)
}

// host is the answer to reqHost: the node has one name, its own.
func (s *Server) host(c *net.UnixConn, q request) []byte {
	if q.mode&hostOfAny == 0 && !s.within(c) || s.conf.Names.Host == nil {
		return nativeInts(0)
	}
	addr, ok := s.conf.Names.Host(q.text)
	addr = addr.Unmap()
	wanted, family := int32(hostIPv4), int32(unix.AF_INET)
	if addr.Is6() {
		wanted, family = hostIPv6, unix.AF_INET6
	}
	if !ok || s.conf.Release < wire.V2411 && q.mode&wanted == 0 { // measured: 24.11 does not look
		return nativeInts(0)
	}
	b := appendTexts(nativeInts(1), q.text)
	b = appendTexts(append(b, nativeInts(1)...), q.text)
	b = append(b, nativeInts(family)...)
	return appendTexts(b, string(addr.AsSlice()))
}

func nativeInts(values ...int32) (b []byte) {
	for _, v := range values {
		b = binary.NativeEndian.AppendUint32(b, uint32(v))
	}
	return b
}

// appendTexts adds strings with their lengths, without a NUL.
func appendTexts(b []byte, texts ...string) []byte {
	for _, t := range texts {
		b = append(binary.NativeEndian.AppendUint32(b, uint32(len(t))), t...)
	}
	return b
}
