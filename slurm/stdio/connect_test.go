package stdio

import (
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestConnect(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		sock, err := connect(netip.MustParseAddrPort(l.Addr().String()), time.Second)
		if err != nil {
			t.Fatalf("%s: %v", addr, err)
		}
		defer unix.Close(sock)
		if alive, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_KEEPALIVE); alive != 1 || err != nil {
			t.Errorf("%s: the kernel does not probe the connection: %d, %v", addr, alive, err)
		}
	}
}

// TestPace holds that much input is read by much and acknowledged late, and the end of it soon.
func TestPace(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	sock, err := connect(netip.MustParseAddrPort(server.Addr().String()), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sock)
	c := &peer{sock: sock}
	l := &loop{clients: []*peer{c}}
	for i, tt := range []struct {
		pause time.Duration
		bytes int
		much  bool
	}{
		{time.Hour, flowMin - 1, false}, {0, 1, true}, {0, 0, true}, {0, 1, true}, {pauseMin, 0, false},
		{time.Hour, flowMin - 1, false}, {pauseMin, 1, false}, {0, flowMin, true}, {pauseMin, 1, false},
	} {
		c.came = time.Now().Add(-tt.pause)
		if tt.pause == 0 {
			c.came = time.Now().Add(time.Hour) // however slow this machine is
		}
		c.readable = false
		had := c.flows
		c.pace(tt.bytes)
		atOnce, low, wait := 1, 1, -1
		if tt.much {
			atOnce, low, wait = 0, flowRead, 1
		}
		isOnce, err := unix.GetsockoptInt(sock, unix.IPPROTO_TCP, unix.TCP_QUICKACK)
		isLow, err2 := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_RCVLOWAT)
		if err != nil || err2 != nil || isOnce != atOnce || isLow != low || l.wait() != wait || c.readable != (had && !tt.much) {
			t.Errorf("%d: after %d bytes: at once %d (%v), %d bytes are enough (%v), waits %d ms, to be read %v", i, tt.bytes, isOnce, err, isLow, err2, l.wait(), c.readable)
		}
	}
}

// TestConnectSilent holds that an srun whose host does not answer is given up.
func TestConnectSilent(t *testing.T) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(sa.(*unix.SockaddrInet4).Port))
	for range 10 { // its queue is full soon
		sock, err := connect(to, 50*time.Millisecond)
		if err != nil {
			if !errors.Is(err, unix.ETIMEDOUT) {
				t.Error(err)
			}
			return
		}
		defer unix.Close(sock)
	}
	t.Error("it has not been given up")
}
