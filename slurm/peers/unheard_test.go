package peers

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/stepnet"
)

// neighbours are the ends of a link over TCP: a node's and its child's. The node's losses come in lost.
func neighbours(t *testing.T, ping time.Duration) (node *stepnet.Node, parent, child *net.TCPConn, lost chan *stepnet.LostError) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	up, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { up.Close() })
	down, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	lost = make(chan *stepnet.LostError, 1)
	node = member(t, 0, ping, lost)
	node.Attach(1, seal(down.(*net.TCPConn), key(1), key(2)))
	return node, down.(*net.TCPConn), up.(*net.TCPConn), lost
}

func member(t *testing.T, self int, ping time.Duration, lost chan *stepnet.LostError) *stepnet.Node {
	t.Helper()
	node, err := stepnet.New(stepnet.Config{
		Names: []string{"n0", "n1"}, Self: self, Limits: stepnet.Limits{Ping: ping},
		Lost: func(err *stepnet.LostError) { lost <- err },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, stop := context.WithCancel(context.Background())
		stop()
		node.Close(ctx)
	})
	return node
}

// fill sends what the other end has no room for.
func fill(t *testing.T, node *stepnet.Node) {
	for range 2 {
		go func() { _, _ = node.Call(t.Context(), 1, "large", make([]byte, 16<<20)) }()
	}
}

// cut drops all that reaches a connection, before its kernel acknowledges it.
func cut(t *testing.T, conns ...*net.TCPConn) {
	t.Helper()
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	for _, conn := range conns {
		if err := linux.OnFD(conn, func(fd int) error {
			return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A step daemon that is stopped, and has 32 MiB to read, is not lost: its kernel answers.
func TestStopped(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ ping, stopped time.Duration }{
		"as it is": {5 * time.Second, 12 * time.Second},
		// The kernel asks every 200, 400, 800 ms and so on, which is longer than two pings soon.
		"longer than the pauses of probes": {400 * time.Millisecond, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node, _, _, lost := neighbours(t, c.ping)
			fill(t, node)
			select {
			case err := <-lost:
				t.Error(err)
			case <-time.After(c.stopped):
			}
		})
	}
}

// A node that nothing reaches and leaves is lost by its kernel's silence, which is earlier than by
// its daemon's.
func TestCutOff(t *testing.T) {
	t.Parallel()
	const ping = time.Second
	check := func(t *testing.T, lost chan *stepnet.LostError, began time.Time) {
		t.Helper()
		select {
		case err := <-lost:
			if took := time.Since(began); took < 3*ping/2 || !strings.Contains(err.Error(), "its host does not answer: connection timed out") {
				t.Errorf("after %v: %v", took, err)
			}
		case <-time.After(patient):
			t.Error("it is not lost")
		}
	}
	t.Run("both say pings", func(t *testing.T) {
		t.Parallel()
		_, parent, child, lost := neighbours(t, ping)
		lostAbove := make(chan *stepnet.LostError, 1)
		member(t, 1, ping, lostAbove).Attach(0, seal(child, key(2), key(1)))
		began := time.Now()
		cut(t, parent, child)
		check(t, lost, began)
		check(t, lostAbove, began)
	})
	t.Run("it has read nothing", func(t *testing.T) {
		t.Parallel()
		node, parent, child, lost := neighbours(t, ping)
		fill(t, node)
		time.Sleep(ping) // so that its window is closed
		began := time.Now()
		cut(t, parent, child)
		check(t, lost, began)
	})
}
