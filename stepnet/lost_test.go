package stepnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// All hear which node was lost, pending gatherings and calls fail by its name, and
// the others still come to an end.
func TestLostNode(t *testing.T) {
	for _, victim := range []int{0, 1, 9} {
		t.Run(fmt.Sprint("node ", victim), func(t *testing.T) {
			r := newRig(t, rigOptions{nodes: 10, limits: Limits{FanOut: 3}})
			r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
			dead := r.nodes[victim]
			go dead.kill()
			r.nodes[victim] = nil
			r.each(func(_ int, n *Node) error {
				_, err := n.Allgather(t.Context(), "fence", nil, nil)
				lost, ok := errors.AsType[*LostError](err)
				if !ok || lost.Node != victim || lost.Name != fmt.Sprintf("n%d", victim) {
					return fmt.Errorf("the gathering ended with %v", err)
				}
				if _, err := n.Call(t.Context(), victim, "x", nil); err == nil {
					return errors.New("the lost node was called")
				}
				return nil
			})
			for i, s := range r.losses {
				if i != victim {
					within(t, s.c, fmt.Sprintf("the loss on node %d", i))
				}
			}
			r.finish()
			for i, s := range r.losses {
				if i != victim && s.times != 1 {
					t.Errorf("node %d has heard of %d losses", i, s.times)
				}
			}
			dead.kill()
		})
	}
}

// Node 2 does not say a word any more, as a host without power: its silence tells.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	deaf := make(chan struct{})
	r := newRig(t, rigOptions{nodes: 3, limits: Limits{Ping: 500 * time.Millisecond}, pair: func(t testing.TB, parent, child int) (net.Conn, net.Conn) {
		up, down := loopback(t, parent, child)
		if child == 2 {
			up = deafConn{up, deaf}
		}
		return up, down
	}})
	r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
	close(deaf)
	within(t, r.losses[0].c, "the loss")
	within(t, r.losses[1].c, "the loss")
	if lost := r.losses[1].first; lost.Node != 2 || !strings.Contains(lost.Cause, "it was silent") {
		t.Errorf("got %v", lost)
	}
}

// deafConn hears nothing any more once deaf is closed.
type deafConn struct {
	net.Conn
	deaf chan struct{}
}

func (d deafConn) Read(b []byte) (int, error) {
	for {
		n, err := d.Conn.Read(b)
		select {
		case <-d.deaf:
			if err == nil {
				continue
			}
		default:
		}
		return n, err
	}
}

// A quiet step is not a lost one: nodes that say nothing are heard by their pings.
func TestQuietNodes(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{nodes: 4, limits: Limits{Ping: 500 * time.Millisecond}})
	r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
	for i, n := range r.nodes[1:] {
		before := n.up.got.Load()
		for end := time.Now().Add(20 * time.Second); n.up.got.Load() == before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("node %d hears no ping of node 0", i+1)
			}
		}
	}
	for i, s := range r.losses {
		select {
		case <-s.c:
			t.Errorf("node %d lost %v", i, s.first)
		default:
		}
	}
	r.finish()
}

// A node that is done relays until all are, and what comes after the end is refused.
func TestFinishWaits(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 7, limits: Limits{FanOut: 2}, pair: piped})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("enough"))
	defer cancel()
	for _, i := range []int{0, 1, 2} { // which are between the others
		if err := r.nodes[i].Finish(ctx); err == nil || err.Error() != "enough" {
			t.Fatalf("node %d: %v, while others go on", i, err)
		}
	}
	if got, err := r.nodes[3].Call(t.Context(), 6, "pong", []byte("hello")); err != nil || string(got) != "hello" {
		t.Errorf("a call by way of nodes that are done: %q, %v", got, err)
	}
	r.finish()
	if _, err := r.nodes[3].Call(t.Context(), 6, "pong", nil); !errors.Is(err, errOver) {
		t.Errorf("a call after the end: %v", err)
	}
}

// What a neighbour may not say ends its link.
func TestUnasked(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 2, late: []int{0}})
	if _, err := r.conns[0].down[1].Write(plainFrame(kindOver)); err != nil {
		t.Fatal(err)
	}
	within(t, r.losses[1].c, "the loss")
	if lost := r.losses[1].first; lost.Node != 0 || !strings.Contains(lost.Cause, "not from there") {
		t.Errorf("got %v", lost)
	}
}

// New refuses a node that the step does not have.
func TestNewRefuses(t *testing.T) {
	for want, c := range map[string]Config{
		"no node 2":  {Names: []string{"a", "b"}, Self: 2},
		"no node -1": {Names: []string{"a", "b"}, Self: -1},
	} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// What is said before there is a link waits for it, and a neighbour that never comes is lost.
func TestAttach(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 4, limits: Limits{FanOut: 1}, late: []int{1, 2, 3}})
	answered := make(chan error, 1)
	go func() {
		_, err := r.nodes[0].Call(t.Context(), 2, "pong", nil)
		answered <- err
	}()
	r.start(2)
	select {
	case err := <-answered:
		t.Fatalf("an answer without a way to node 2: %v", err)
	default:
	}
	r.start(1)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if conn, _ := net.Pipe(); conn != nil { // a second connection is refused
		r.nodes[1].Attach(0, conn)
		if _, err := conn.Write(nil); err == nil {
			t.Error("a second connection was taken")
		}
	}
	r.conns[3].up.Close() // node 3 does not come
	r.nodes[2].Lose(3, "it has not come")
	for i := range 3 {
		within(t, r.losses[i].c, fmt.Sprint("the loss on node ", i))
		if lost := r.losses[i].first; lost.Node != 3 {
			t.Errorf("node %d has lost %v", i, lost)
		}
	}
	r.nodes[2].Lose(3, "again")
}

// A node is closed whose links were never made.
func TestCloseUnattached(t *testing.T) {
	lost := &losses{c: make(chan struct{})}
	n, err := New(Config{Names: []string{"a", "b", "c"}, Self: 0, Lost: lost.lost})
	if err != nil {
		t.Fatal(err)
	}
	n.Close(t.Context())
	conn, other := net.Pipe()
	n.Attach(1, conn)
	if _, err := other.Write([]byte{0}); err == nil {
		t.Error("a closed node has taken a connection")
	}
}
