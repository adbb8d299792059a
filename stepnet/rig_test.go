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

	"stepd/step"
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

// fakeStep is a step on one node.
type fakeStep struct {
	mu       sync.Mutex
	lost     *LostError // guarded by mu: the first
	gone     []int      // guarded by mu: all nodes that were lost
	lostc    chan struct{}
	readyc   chan struct{}
	launchc  chan struct{} // closed when the launcher is lost
	told     chan string   // size: enough for a test
	orders   chan string
	launched sync.Once
}

func newFakeStep() *fakeStep {
	return &fakeStep{
		lostc: make(chan struct{}), readyc: make(chan struct{}), launchc: make(chan struct{}),
		told: make(chan string, 1024), orders: make(chan string, 1024),
	}
}

func (f *fakeStep) LauncherReady() { close(f.readyc) }
func (f *fakeStep) LauncherLost()  { f.launched.Do(func() { close(f.launchc) }) }
func (f *fakeStep) NodeLost(err *LostError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost == nil {
		f.lost = err
		close(f.lostc)
	}
	f.gone = append(f.gone, err.Node)
}
func (f *fakeStep) Told(from int, words []byte) { f.told <- fmt.Sprintf("%d:%s", from, words) }
func (f *fakeStep) Ordered(words []byte)        { f.orders <- string(words) }

// rig is a step of several nodes in this process.
type rig struct {
	t           testing.TB
	layout      *step.Layout
	limits      Limits
	id          step.ID
	nodes       []*Node
	steps       []*fakeStep
	keys        [][]byte
	launcherKey []byte
	watcherKey  []byte
	watch       func(conn net.Conn)
	listeners   []net.Listener
}

// rigOptions choose what a rig has; the zero value is 4 nodes with 16 branches.
type rigOptions struct {
	nodes      int
	limits     Limits
	launcher   bool
	inputNodes []int
	late       []int // nodes that are not begun
	noKill     bool
	watch      func(conn net.Conn)
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	r := &rig{t: t, layout: &step.Layout{NoKill: o.noKill}, limits: o.limits, id: step.ID{Job: 7, Step: 4294967291}}
	r.nodes, r.steps = make([]*Node, o.nodes), make([]*fakeStep, o.nodes)
	for i := range o.nodes {
		key, hash, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		r.keys, r.listeners = append(r.keys, key), append(r.listeners, ln)
		r.layout.Nodes = append(r.layout.Nodes, step.LayoutNode{Name: fmt.Sprintf("n%d", i), Addr: ln.Addr().String(), Key: hash, Ranks: fmt.Sprint(i)})
	}
	if o.launcher {
		key, hash, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		r.launcherKey, r.layout.Launcher = key, hash
	}
	if r.watch = o.watch; o.watch != nil {
		key, hash, err := NewKey()
		if err != nil {
			t.Fatal(err)
		}
		r.watcherKey, r.layout.Watcher = key, hash
	}
	late := make(map[int]bool)
	for _, i := range o.late {
		late[i] = true
	}
	for i := range o.nodes {
		if !late[i] {
			r.start(i, o.inputNodes)
		}
	}
	t.Cleanup(r.close)
	return r
}

func (r *rig) start(i int, inputNodes []int) {
	r.t.Helper()
	r.begin(i, inputNodes, func(text string) { logTo(r.t, i, text) })
}

func (r *rig) startLogging(i int, log func(text string)) {
	r.t.Helper()
	r.begin(i, nil, log)
}

func (r *rig) begin(i int, inputNodes []int, log func(text string)) {
	r.t.Helper()
	r.steps[i] = newFakeStep()
	n, err := New(Config{
		ID: r.id, Self: i, Layout: r.layout, Key: r.keys[i], Listener: r.listeners[i], InputNodes: inputNodes,
		Handler: r.steps[i], Limits: r.limits, Log: log, Watch: r.watch,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.nodes[i] = n
}

func logTo(t testing.TB, node int, text string) {
	if testing.Verbose() {
		fmt.Fprintf(os.Stderr, "%s: n%d: %s\n", t.Name(), node, text)
	}
}

// close ends what a test has left.
func (r *rig) close() {
	for i, ln := range r.listeners {
		if r.nodes[i] == nil {
			ln.Close()
		}
	}
	var wg sync.WaitGroup
	for _, n := range r.nodes {
		if n != nil {
			wg.Go(func() { n.kill() })
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
	n.Close()
}

func (r *rig) dial(sink Sink) *Launcher {
	r.t.Helper()
	a, err := Dial(context.Background(), LauncherConfig{ID: r.id, Layout: r.layout, Key: r.launcherKey, Sink: sink, Limits: r.limits})
	if err != nil {
		r.t.Fatal(err)
	}
	return a
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
		n.Close()
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

// quietNode is node 0 of a step whose other nodes are not there: tests speak for
// them.
func quietNode(nodes int) *Node {
	key, hash, err := NewKey()
	if err != nil {
		panic(err)
	}
	layout := &step.Layout{}
	for i := range nodes {
		layout.Nodes = append(layout.Nodes, step.LayoutNode{Name: fmt.Sprint("n", i), Key: hash})
	}
	n, err := New(Config{Layout: layout, Key: key, Handler: deafStep{}, InputNodes: []int{0, 1}})
	if err != nil {
		panic(err)
	}
	return n
}

type deafStep struct{}

func (deafStep) LauncherReady()      {}
func (deafStep) LauncherLost()       {}
func (deafStep) NodeLost(*LostError) {}
func (deafStep) Told(int, []byte)    {}
func (deafStep) Ordered([]byte)      {}
