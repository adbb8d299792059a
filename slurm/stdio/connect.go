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

const (
	// flowMin bytes of a client's without a pause of pauseMin are much.
	flowMin  = 256 << 10
	pauseMin = time.Millisecond
	// flowRead is how much is read at once, at least, while much comes.
	flowRead = 64 << 10
)

// pace takes note of n bytes that have come, or, with 0, that no more may have. In the midst of much
// the loop is woken for flowRead bytes (SO_RCVLOWAT, socket(7)), and not for each piece of 1 KB that
// srun sends; and the kernel acknowledges as late as it may (TCP_QUICKACK, tcp(7)), since pieces that
// follow what is not acknowledged go out together, unless srun forbids it, as from 23.11 on. The last
// pieces are taken and acknowledged after pauseMin.
func (c *peer) pace(n int) {
	if n == 0 && !c.flows {
		return
	}
	now := time.Now()
	if now.Sub(c.came) >= pauseMin {
		c.flow = 0
	}
	if n > 0 {
		c.came = now
	}
	c.flow += n
	if flows := c.flow >= flowMin; flows != c.flows && c.open() {
		c.flows = flows
		atOnce, low := 1, 1
		if flows {
			atOnce, low = 0, flowRead
		} else {
			c.readable = true // less than flowRead may be there, of which no event tells
		}
		// Without either the bytes only take longer; a mark that was set can be taken back.
		_ = unix.SetsockoptInt(c.sock, unix.IPPROTO_TCP, unix.TCP_QUICKACK, atOnce)
		_ = unix.SetsockoptInt(c.sock, unix.SOL_SOCKET, unix.SO_RCVLOWAT, low)
	}
}
