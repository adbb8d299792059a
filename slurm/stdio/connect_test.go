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

// TestPace holds that much input is acknowledged late, and the end of it soon.
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
	for _, tt := range []struct{ bytes, atOnce, wait int }{
		{flowMin - 1, 1, -1}, {1000, 1, -1}, {flowMin, 0, 1}, {pieceMin, 0, 1}, {0, 1, -1}, {pieceMin, 1, -1},
	} {
		c.pace(tt.bytes)
		atOnce, err := unix.GetsockoptInt(sock, unix.IPPROTO_TCP, unix.TCP_QUICKACK)
		if err != nil || atOnce != tt.atOnce || l.wait() != tt.wait {
			t.Errorf("after %d bytes: at once %d (%v), waits %d ms", tt.bytes, atOnce, err, l.wait())
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
