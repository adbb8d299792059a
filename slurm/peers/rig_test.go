package peers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	fields "stepd/internal/wire"
	"stepd/stepnet"
)

// TestMain fails when a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	code := m.Run()
	if left := leftOver(); code == 0 && left != "" {
		fmt.Fprintln(os.Stderr, "goroutines are left:\n"+left)
		code = 1
	}
	os.Exit(code)
}

func leftOver() (left string) {
	for range 200 {
		buf := make([]byte, 1<<20)
		left = ""
		for i, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			if i > 0 && (strings.Contains(g, "stepd/stepnet.(") || strings.Contains(g, "stepd/slurm/peers.(")) {
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

// office is Slurm's part of a step in this process: it brings mails, and hides them.
type office struct {
	t      testing.TB
	dir    string
	names  []string
	mu     sync.Mutex
	closed map[int]bool  // guarded by mu: nodes whose ports cannot be reached
	cut    map[int]bool  // guarded by mu: nodes that no mail reaches or leaves
	log    []string      // guarded by mu
	losses map[int]error // guarded by mu: by the node that knows it
	lost   chan int      // nodes that know a loss
	// change gets a mail before it is brought, and returns what is brought; nil keeps it.
	change   func(from, to int, data []byte) [][]byte
	patience time.Duration
	limits   stepnet.Limits
	distance time.Duration // how long what nodes write to each other is under way
}

func newOffice(t testing.TB, nodes int) *office {
	// Short: the mailboxes' names are sockets'.
	dir, err := os.MkdirTemp("", "p")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	o := &office{t: t, dir: dir, closed: map[int]bool{}, cut: map[int]bool{}, losses: map[int]error{}, lost: make(chan int, nodes)}
	for i := range nodes {
		o.names = append(o.names, fmt.Sprint("n", i))
	}
	return o
}

func (o *office) path(node int) string { return filepath.Join(o.dir, fmt.Sprint("m", node)) }

func (o *office) note(line string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.log = append(o.log, line)
	if testing.Verbose() {
		fmt.Fprintln(os.Stderr, line)
	}
}

// logs returns the lines that hold a text.
func (o *office) logs(text string) (lines []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.log {
		if strings.Contains(l, text) {
			lines = append(lines, l)
		}
	}
	return lines
}

// loss is what a node knows of a lost one.
func (o *office) loss(node int) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.losses[node]
}

func (o *office) set(of map[int]bool, node int, is bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	of[node] = is
}

// bring is slurmd's part: it writes a mail into a mailbox.
func (o *office) bring(ctx context.Context, from, to int, data []byte) error {
	o.mu.Lock()
	cut := o.cut[from] || o.cut[to]
	o.mu.Unlock()
	if cut {
		return errors.New("the link is down")
	}
	pieces := [][]byte{data}
	if o.change != nil {
		pieces = o.change(from, to, data)
	}
	for _, p := range pieces {
		if err := deliver(ctx, o.path(to), uint32(os.Geteuid()), p); err != nil {
			return err
		}
	}
	return nil
}

// deliver writes a mail as slurmd does.
func deliver(ctx context.Context, path string, uid uint32, data []byte) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return err
	}
	defer conn.Close()
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uid), uint32(len(data)))
	_, err = conn.Write(append(head, data...))
	return err
}

func (o *office) config(self int) Config {
	return Config{
		Job: 7, Step: 3, Names: o.names, Self: self, Mailbox: o.path(self),
		Deliver: func(ctx context.Context, to int, data []byte) error { return o.bring(ctx, self, to, data) },
		Host: func(node int) (string, error) {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.closed[node] || o.closed[self] {
				return "", errors.New("no route to host")
			}
			return "127.0.0.1", nil
		},
		Hide: func(_ context.Context, data []byte) (string, error) {
			if o.distance > 0 {
				data = o.farther(data)
			}
			return "root:" + string(data), nil
		},
		Reveal: func(_ context.Context, token string) ([]byte, error) {
			data, ok := strings.CutPrefix(token, "root:")
			if !ok {
				return nil, errors.New("it is not root's")
			}
			return []byte(data), nil
		},
		Lost: func(err *stepnet.LostError) {
			o.mu.Lock()
			o.losses[self] = err
			o.mu.Unlock()
			o.lost <- self
		},
		Log: func(line string) { o.note(fmt.Sprintf("n%d: %s", self, line)) }, Patience: o.patience, Limits: o.limits,
	}
}

// farther is a child's hello that names a port at a distance from the child's own.
func (o *office) farther(data []byte) []byte {
	end := len(data) - 4 // the port is last
	port := fields.Reader{B: data[end:]}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		o.t.Error(err)
		return data
	}
	o.t.Cleanup(func() { l.Close() })
	near := fmt.Sprint("127.0.0.1:", port.U32())
	go func() {
		for {
			parent, err := l.Accept()
			if err != nil {
				return
			}
			child, err := net.Dial("tcp", near)
			if err != nil {
				parent.Close()
				continue
			}
			go carry(child, parent, o.distance)
			go carry(parent, child, o.distance)
		}
	}()
	w := fields.Writer{B: data[:end:end]}
	w.U32(uint32(l.Addr().(*net.TCPAddr).Port))
	return w.B
}

// carry brings what comes from one connection to the other, so much later.
func carry(to, from net.Conn, distance time.Duration) {
	type piece struct {
		data []byte
		due  time.Time
	}
	way := make(chan piece, 1000)
	go func() {
		defer to.Close()
		for p := range way {
			time.Sleep(time.Until(p.due))
			to.Write(p.data)
		}
	}()
	defer close(way)
	for {
		data := make([]byte, 16<<10)
		n, err := from.Read(data)
		if err != nil {
			return
		}
		way <- piece{data[:n], time.Now().Add(distance)}
	}
}

// start begins a node.
func (o *office) start(self int) *Group {
	o.t.Helper()
	g, err := New(o.config(self))
	if err != nil {
		o.t.Fatal(err)
	}
	g.Handle("pong", func(_ context.Context, _ int, data []byte) ([]byte, error) { return data, nil })
	return g
}

// all begins all nodes; they are killed at the test's end.
func (o *office) all() []*Group {
	o.t.Helper()
	groups := make([]*Group, len(o.names))
	for i := range groups {
		groups[i] = o.start(i)
	}
	o.t.Cleanup(func() { closeAll(groups) })
	return groups
}

// closeAll leaves at once.
func closeAll(groups []*Group) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	each(groups, func(g *Group) error { g.Close(ctx, "the test is over"); return nil })
}

// each runs f for all nodes at once.
func each(groups []*Group, f func(g *Group) error) error {
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		if g != nil {
			wg.Go(func() { errs[i] = f(g) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// patient bounds what a test waits for, on a machine that is busy.
const patient = 2 * time.Minute

// fence has all nodes meet.
func fence(groups []*Group, name string, data []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	return each(groups, func(g *Group) error {
		all, err := g.Allgather(ctx, name, nil, data)
		if err == nil && len(all) != len(groups) {
			err = fmt.Errorf("%d parts came", len(all))
		}
		return err
	})
}

// finish ends all nodes in order.
func finish(groups []*Group) error {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	return each(groups, func(g *Group) error {
		err := g.Finish(ctx)
		g.Close(ctx, "the test is over")
		return err
	})
}
