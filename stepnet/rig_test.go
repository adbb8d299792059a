package stepnet

import (
	"context"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain fails when a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if left := leftOver(); left != "" {
			fmt.Fprintln(os.Stderr, "goroutines are left:\n"+left)
			code = 1
		}
	}
	os.Exit(code)
}

func leftOver() string {
	var left string
	for range 200 {
		buf := make([]byte, 1<<20)
		left = ""
		for i, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if i > 0 && strings.Contains(g, "stepd/stepnet.(") {
				left += g + "\n\n"
			}
		}
		if left == "" {
			return ""
		}
		time.Sleep(10 * time.Millisecond)
	}
	return left
}

// losses are what a node says of lost ones.
type losses struct {
	mu    sync.Mutex
	first *LostError // guarded by mu
	times int        // guarded by mu
	c     chan struct{}
}

func (l *losses) lost(err *LostError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.times++; l.first == nil {
		l.first = err
		close(l.c)
	}
}

// rig is a step of several nodes in this process.
type rig struct {
	t      testing.TB
	limits Limits
	names  []string
	conns  []ends // of each node
	nodes  []*Node
	losses []*losses
}

// ends are a node's of its connections.
type ends struct {
	up   net.Conn
	down map[int]net.Conn
}

// rigOptions choose what a rig has; limits' zero value is 16 branches.
type rigOptions struct {
	nodes  int
	limits Limits
	late   []int // nodes that are not begun
	// pair makes the two ends of a connection, the parent's first; nil is over loopback.
	pair func(t testing.TB, parent, child int) (up, down net.Conn)
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, limits: o.limits, nodes: make([]*Node, o.nodes), conns: make([]ends, o.nodes)}
	if o.pair == nil {
		o.pair = loopback
	}
	fan := o.limits.withDefaults().FanOut
	for i := range o.nodes {
		r.names = append(r.names, fmt.Sprint("n", i))
		r.losses = append(r.losses, &losses{c: make(chan struct{})})
		r.conns[i].down = make(map[int]net.Conn)
	}
	for i := range o.nodes {
		for _, c := range (tree{i, o.nodes, fan}).children() {
			r.conns[i].down[c], r.conns[c].up = o.pair(t, i, c)
		}
	}
	late := make(map[int]bool)
	for _, i := range o.late {
		late[i] = true
	}
	for i := range o.nodes {
		if !late[i] {
			r.start(i)
		}
	}
	t.Cleanup(r.close)
	return r
}

// loopback is a connection over TCP.
func loopback(t testing.TB, _, _ int) (parent, child net.Conn) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if child, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if parent, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	return parent, child
}

// piped is a connection that holds nothing.
func piped(testing.TB, int, int) (parent, child net.Conn) { return net.Pipe() }

func (r *rig) start(i int) {
	r.t.Helper()
	n, err := New(Config{
		Names: r.names, Self: i, Lost: r.losses[i].lost, Limits: r.limits,
		Log: func(text string) {
			if testing.Verbose() {
				fmt.Fprintf(os.Stderr, "%s: n%d: %s\n", r.t.Name(), i, text)
			}
		},
	})
	if err != nil {
		r.t.Fatal(err)
	}
	n.Handle("pong", func(_ context.Context, _ int, data []byte) ([]byte, error) { return data, nil })
	r.nodes[i] = n
	if up := r.conns[i].up; up != nil {
		n.Attach(n.Parent(), up)
	}
	for c, conn := range r.conns[i].down {
		n.Attach(c, conn)
	}
}

// close ends what a test has left.
func (r *rig) close() {
	var wg sync.WaitGroup
	for i, n := range r.nodes {
		if n != nil {
			wg.Go(func() { n.kill() })
			continue
		}
		if up := r.conns[i].up; up != nil {
			up.Close()
		}
		for _, c := range r.conns[i].down {
			c.Close()
		}
	}
	wg.Wait()
}

// kill ends a node as kill -9 would: its connections end, and nothing is said.
func (n *Node) kill() {
	n.cancel(errOver)
	for _, l := range n.links() {
		l.fail(errOver)
	}
	n.Close(context.Background())
}

// each runs f for all nodes at once.
func (r *rig) each(f func(i int, n *Node) error) {
	r.t.Helper()
	errs := make([]error, len(r.nodes))
	var wg sync.WaitGroup
	for i, n := range r.nodes {
		if n != nil {
			wg.Go(func() { errs[i] = f(i, n) })
		}
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			r.t.Errorf("node %d: %v", i, err)
		}
	}
}

// finish ends all nodes in order.
func (r *rig) finish() {
	r.t.Helper()
	r.each(func(_ int, n *Node) error {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := n.Finish(ctx); err != nil {
			return err
		}
		n.Close(ctx)
		return nil
	})
}

func within(t testing.TB, c <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s did not come within 20 s", what)
	}
}
