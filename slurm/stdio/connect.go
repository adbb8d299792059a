package stdio

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// connect connects to srun. It waits in the kernel, as the loop does: the runtime's poller
// would have it wait for what else the step's start does.
func connect(to netip.AddrPort, timeout time.Duration) (sock int, err error) {
	family, addr := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if ip := to.Addr().Unmap(); ip.Is4() {
		family, addr = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: ip.As4()}
	}
	sock, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	if err = unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err == nil {
		// Connected once more after a signal, it goes on waiting.
		err = linux.IgnoringEINTR(func() error { return unix.Connect(sock, addr) })
	}
	if errors.Is(err, unix.EINPROGRESS) || errors.Is(err, unix.EALREADY) {
		err = unix.ETIMEDOUT
	}
	// As the runtime does it: the kernel probes a connection that is idle, and sends at once.
	for _, o := range []struct{ level, option, value int }{
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 9},
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
	} {
		if err == nil {
			err = unix.SetsockoptInt(sock, o.level, o.option, o.value)
		}
	}
	if err != nil {
		unix.Close(sock)
		return -1, err
	}
	return sock, nil
}

// flowMin bytes of a client's, read in pieces of at least pieceMin, are much.
const flowMin, pieceMin = 256 << 10, 4 << 10

// pace has the kernel acknowledge at once what the client has sent, n bytes now, but as late as it
// may in the midst of much (TCP_QUICKACK, tcp(7)). srun sends pieces of 1 KB, and those that follow
// what is not acknowledged go out together: of much input a twelfth of the time (measured). The
// last pieces are acknowledged within a millisecond, by a call with 0 bytes.
func (c *peer) pace(n int) {
	if c.flow += n; n < pieceMin {
		c.flow = 0
	}
	if late := c.flow >= flowMin; late != c.ackLate && c.open() {
		c.ackLate = late
		atOnce := 1
		if late {
			atOnce = 0
		}
		_ = unix.SetsockoptInt(c.sock, unix.IPPROTO_TCP, unix.TCP_QUICKACK, atOnce) // without it the bytes only take longer
	}
}
