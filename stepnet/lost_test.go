package stepnet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
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
			for i, s := range r.steps {
				if i != victim {
					within(t, s.lostc, fmt.Sprintf("the loss on node %d", i))
				}
			}
			r.finish()
			dead.kill()
		})
	}
}

// Node 2 does not say a word any more, as a host without power: its silence tells.
func TestSilentNode(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3, limits: Limits{Ping: 500 * time.Millisecond}, late: []int{0, 1, 2}})
	deaf := make(chan struct{})
	r.listeners[0] = &deafListener{r.listeners[0], deaf, 0}
	// Node 2 comes first, and is the one that is not heard any more.
	r.start(0, nil)
	r.start(2, nil)
	within(t, r.nodes[0].down[2].attached, "node 2")
	r.start(1, nil)
	r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
	close(deaf)
	within(t, r.steps[0].lostc, "the loss")
	within(t, r.steps[1].lostc, "the loss")
	if lost := r.steps[1].lost; lost.Node != 2 || !strings.Contains(lost.Cause, "nothing was heard") {
		t.Errorf("got %v", lost)
	}
}

// deafListener does not hear its first connection any more once deaf is closed.
type deafListener struct {
	net.Listener
	deaf chan struct{}
	n    int
}

func (d *deafListener) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if d.n++; d.n == 1 && err == nil {
		c = deafConn{c, d.deaf}
	}
	return c, err
}

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
	r := newRig(t, rigOptions{nodes: 4, limits: Limits{Ping: 500 * time.Millisecond}})
	r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
	for i, n := range r.nodes[1:] {
		before := n.up.meter.got.Load()
		for end := time.Now().Add(20 * time.Second); n.up.meter.got.Load() == before; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("node %d hears no ping of node 0", i+1)
			}
		}
	}
	for i, s := range r.steps {
		select {
		case <-s.lostc:
			t.Errorf("node %d lost %v", i, s.lost)
		default:
		}
	}
	r.finish()
}

func TestNodeNeverComes(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3, limits: Limits{Connect: 2 * time.Second}, late: []int{2}})
	within(t, r.steps[1].lostc, "the loss")
	if lost := r.steps[1].lost; lost.Node != 2 || !strings.Contains(lost.Cause, "did not connect") {
		t.Errorf("got %v", lost)
	}
}

func TestParentNeverListens(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 2, limits: Limits{Refused: 100 * time.Millisecond}, late: []int{0}})
	r.listeners[0].Close()
	within(t, r.steps[1].lostc, "the loss")
	if lost := r.steps[1].lost; lost.Node != 0 || !strings.Contains(lost.Cause, "refused") {
		t.Errorf("got %v", lost)
	}
}

// Who does not prove a key of the step is refused with a line in the log, and
// changes nothing for the others.
func TestStrangers(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3, late: []int{2}, launcher: true})
	addr := r.layout.Nodes[0].Addr
	stranger, _, err := NewKey()
	if err != nil {
		t.Fatal(err)
	}
	talk := func(key []byte, from int) error {
		id, err := identity(key)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, conn, err := dial(ctx, addr, id, r.layout.Nodes[0].Key, time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		conn.Write(hello{version: protocol, job: 7, step: -5, from: from, fan: 16, nodes: 3}.frame())
		_, err = io.ReadFull(conn, make([]byte, 1))
		return err
	}
	within(t, r.nodes[0].down[1].attached, "node 1")
	if err := talk(stranger, 2); err == nil {
		t.Error("a stranger was taken for node 2")
	}
	if err := talk(r.keys[2], 1); err == nil {
		t.Error("node 2 was taken for node 1") // the hello says another node than the key
	}
	if err := talk(r.keys[1], 1); err == nil {
		t.Error("node 1 was let in twice")
	}
	for _, junk := range []string{"", "GET / HTTP/1.0\r\n\r\n", strings.Repeat("\x16\x03\x01", 1000)} {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte(junk))
		c.Close()
	}
	// A listener with another key is not talked to.
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	strange, _ := identity(stranger)
	go func() {
		if c, err := ln.Accept(); err == nil {
			tls.Server(c, pinned(strange, func([32]byte) bool { return true })).Handshake()
			c.Close()
		}
	}()
	mine, _ := identity(r.keys[2])
	if _, _, err := dial(t.Context(), ln.Addr().String(), mine, r.layout.Nodes[0].Key, time.Second); !errors.Is(err, errKey) {
		t.Errorf("a listener with another key: %v", err)
	}
	r.start(2, nil)
	r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
	a := r.dial(&collector{})
	defer a.Close()
	within(t, r.steps[1].readyc, "the launcher")
	r.finish()
	if err := a.Wait(); err != nil {
		t.Error(err)
	}
}

func TestTell(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 13, limits: Limits{FanOut: 3}})
	if err := r.nodes[5].Tell([]byte("rank 7 aborted")); err != nil {
		t.Fatal(err)
	}
	for i, s := range r.steps {
		if i == 5 {
			continue
		}
		if got := <-s.told; got != "5:rank 7 aborted" {
			t.Errorf("node %d was told %q", i, got)
		}
	}
	r.finish()
	for i, s := range r.steps {
		if len(s.told) > 0 {
			t.Errorf("node %d was told twice: %q", i, <-s.told)
		}
	}
}

// When the step ends before its time, those who have not connected are not waited
// for.
func TestHurry(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3, limits: Limits{Hurry: 50 * time.Millisecond}, late: []int{2}, launcher: true})
	within(t, r.nodes[0].down[1].attached, "node 1") // it is not to be the one that is lost
	for _, n := range r.nodes[:2] {
		n.Hurry()
	}
	r.finish()
	within(t, r.steps[0].lostc, "the loss")
	if lost := r.steps[0].lost; lost.Node != 2 {
		t.Errorf("got %v", lost)
	}
}

// The launcher is a user's program: it may not say that the step is over before all
// was sent, nor what is a stepd's to say.
func TestLauncherOversteps(t *testing.T) {
	for _, f := range []frame{
		plainFrame(kindOver), wordsFrame(kindLost, 1, []byte("it is not")), wordsFrame(kindTold, 1, nil),
		(&call{to: 1, name: "x"}).frame(kindCall), plainFrame(kindReady),
		newFrame(kindOrder, 0).bytes(make([]byte, launcherFrameMax)).done(),
	} {
		r := newRig(t, rigOptions{nodes: 2, launcher: true})
		a := r.dial(&collector{})
		within(t, r.steps[1].readyc, "the launcher")
		a.l.push(f)
		within(t, r.steps[1].launchc, "the end of the launcher")
		a.Close()
		r.finish()
	}
}

// Many who connect, say nothing or begin a handshake that they do not end, and come
// again, keep nobody out, also from the same address, and the log is not filled.
func TestManyStrangers(t *testing.T) {
	for name, word := range map[string]string{"silent": "", "begun": "\x16\x03\x01\x02\x00\x01"} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{nodes: 2, late: []int{0, 1}})
			var mu sync.Mutex
			lines := 0
			r.startLogging(0, func(string) {
				mu.Lock()
				defer mu.Unlock()
				lines++
			})
			knock := func(count int) {
				for range count {
					c, err := net.Dial("tcp", r.layout.Nodes[0].Addr)
					if err != nil {
						return // it listens no more: all have come
					}
					t.Cleanup(func() { c.Close() })
					_, _ = c.Write([]byte(word))
				}
			}
			knock(strangersMax)
			stop, stopped := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(stopped)
				for {
					select {
					case <-stop:
						return
					case <-time.After(time.Millisecond):
						knock(1)
					}
				}
			}()
			r.start(1, nil)
			r.each(func(_ int, n *Node) error { _, err := n.Allgather(t.Context(), "up", nil, nil); return err })
			close(stop)
			<-stopped
			r.finish()
			if mu.Lock(); lines > refusalsMax {
				t.Errorf("%d lines in the log", lines)
			}
			mu.Unlock()
		})
	}
}

// TestDropStrangers: who goes where too many have come.
func TestDropStrangers(t *testing.T) {
	s := newStrangers(func(string, ...any) {})
	conns := make(map[string][]*closeConn)
	come := func(addr string, count int, said bool) {
		for range count {
			c := &closeConn{addr: &net.TCPAddr{IP: net.ParseIP(addr), Port: 1}}
			m := &meteredConn{Conn: c}
			if said {
				m.got.Store(1)
			}
			conns[addr] = append(conns[addr], c)
			s.add(m, time.Hour)
		}
	}
	left := func(addr string) (n int) {
		for _, c := range conns[addr] {
			if !c.closed {
				n++
			}
		}
		return n
	}
	come("10.0.0.1", 1, true) // one who is expected
	come("10.0.0.9", 3*strangersOfOne, false)
	if left("10.0.0.9") != strangersOfOne || conns["10.0.0.9"][0].closed == false {
		t.Errorf("%d are left of one address", left("10.0.0.9"))
	}
	// Many addresses of one network are one, and others have room.
	come("2001:db8::1", strangersOfOne, false)
	come("2001:db8::2", strangersOfOne, true)
	if n := left("2001:db8::1") + left("2001:db8::2"); n != strangersOfOne || left("2001:db8::1") != 0 {
		t.Errorf("%d are left of one network, %d of them silent", n, left("2001:db8::1"))
	}
	for i := range 200 {
		come("10.1.0."+strconv.Itoa(i), 2, false)
	}
	if len(s.waiting) != strangersMax || left("10.0.0.1") != 1 {
		t.Errorf("%d wait, %d of them the one that is expected", len(s.waiting), left("10.0.0.1"))
	}
	come("10.0.0.9", 2*strangersOfOne, true)
	if left("10.0.0.1") != 1 {
		t.Error("another address has driven out the one that is expected")
	}
	for len(s.waiting) > 0 {
		s.known(s.waiting[0].c)
	}
}

// closeConn is a connection from addr.
type closeConn struct {
	net.Conn
	addr   net.Addr
	closed bool
}

func (c *closeConn) RemoteAddr() net.Addr { return c.addr }
func (c *closeConn) Close() error         { c.closed = true; return nil }
