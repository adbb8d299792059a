package stepnet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// collector is a launcher's sink.
type collector struct {
	mu      sync.Mutex
	streams map[string]*bytes.Buffer // guarded by mu: by fd and rank
	ended   map[string]bool          // guarded by mu
	said    []string                 // guarded by mu
	hold    chan struct{}            // Output waits for its end; nil does not
	taken   int                      // guarded by mu: bytes
}

func (c *collector) Output(fd, rank int, data []byte, end bool) {
	if c.hold != nil {
		<-c.hold
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.streams == nil {
		c.streams, c.ended = make(map[string]*bytes.Buffer), make(map[string]bool)
	}
	name := fmt.Sprintf("%d/%d", fd, rank)
	if c.streams[name] == nil {
		c.streams[name] = new(bytes.Buffer)
	}
	if c.ended[name] {
		panic(name + " goes on after its end")
	}
	c.streams[name].Write(data)
	c.taken += len(data)
	c.ended[name] = end
}

func (c *collector) Record(node int, words []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.said = append(c.said, fmt.Sprintf("%d:%s", node, words))
}

// pipe is one with our end not blocking.
func pipe(t testing.TB, ours int) (read, write *os.File) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.SetNonblock(p[ours], true)
	return os.NewFile(uintptr(p[0]), "read"), os.NewFile(uintptr(p[1]), "write")
}

// All that the tasks of all nodes write comes to the launcher, in order, to the
// last byte, and so do words.
func TestOutput(t *testing.T) {
	const nodes, ranks, lines = 10, 5, 200
	r := newRig(t, rigOptions{nodes: nodes, limits: Limits{FanOut: 3}, launcher: true})
	c := &collector{}
	a := r.dial(c)
	defer a.Close()
	text := func(fd, rank int) string {
		var b strings.Builder
		for i := range lines {
			fmt.Fprintf(&b, "%d %d %d %s\n", fd, rank, i, strings.Repeat("x", 100*rank))
		}
		return b.String()
	}
	r.each(func(i int, n *Node) error {
		within(t, r.steps[i].readyc, "the launcher")
		var wg sync.WaitGroup
		for k := range ranks {
			for fd := 1; fd <= 2; fd++ {
				rank := i*ranks + k
				read, write := pipe(t, 0)
				n.Output(fd, rank, read)
				wg.Go(func() { io.WriteString(write, text(fd, rank)); write.Close() })
			}
		}
		if err := n.TellLauncher(fmt.Appendf(nil, "node %d", i)); err != nil {
			return err
		}
		if !n.TellLine([]byte("a line")) {
			return errors.New("a line was dropped")
		}
		wg.Wait()
		return nil
	})
	r.finish()
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
	for rank := range nodes * ranks {
		for fd := 1; fd <= 2; fd++ {
			name := fmt.Sprintf("%d/%d", fd, rank)
			if !c.ended[name] || c.streams[name].String() != text(fd, rank) {
				t.Errorf("stream %s: ended %v, %d bytes of %d", name, c.ended[name], c.streams[name].Len(), len(text(fd, rank)))
			}
		}
	}
	if len(c.said) != 2*nodes {
		t.Errorf("the nodes said %q", c.said)
	}
}

// A launcher that takes nothing stops the tasks; what waits on its way is bounded by
// the windows, and all of it comes when it takes again.
func TestOutputStandsStill(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 5, limits: Limits{FanOut: 2}, launcher: true})
	c := &collector{hold: make(chan struct{})}
	a := r.dial(c)
	defer a.Close()
	var mu sync.Mutex
	written := 0
	const all = 4 << 20
	var wg sync.WaitGroup
	for i, n := range r.nodes {
		read, write := pipe(t, 0)
		n.Output(1, i, read)
		wg.Go(func() {
			defer write.Close()
			b := make([]byte, 4096)
			for range all / len(b) {
				if _, err := write.Write(b); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				written += len(b)
				mu.Unlock()
			}
		})
	}
	// It comes to rest.
	before := -1
	for {
		time.Sleep(200 * time.Millisecond)
		mu.Lock()
		now := written
		mu.Unlock()
		if now == before {
			break
		}
		before = now
	}
	// One window for each hop, a pipe and a chunk for each task.
	if bound := 5 * (window + 64<<10 + 2*chunk); before > bound {
		t.Errorf("%d bytes were written before the tasks stood still, at most %d", before, bound)
	}
	close(c.hold)
	wg.Wait()
	r.finish()
	if err := a.Wait(); err != nil {
		t.Fatal(err)
	}
	if c.taken != 5*all {
		t.Errorf("%d of %d bytes came", c.taken, 5*all)
	}
}

// A launcher that still takes nothing when the tasks have ended is given up.
func TestDrainGivesUp(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 3, limits: Limits{Drain: 200 * time.Millisecond}, launcher: true})
	c := &collector{hold: make(chan struct{})}
	a := r.dial(c)
	read, write := pipe(t, 0)
	r.nodes[2].Output(1, 2, read)
	go func() { write.Write(make([]byte, 1<<20)); write.Close() }()
	r.finish()
	close(c.hold)
	if err := a.Wait(); err == nil {
		t.Error("the launcher got all")
	}
	a.Close()
	within(t, r.steps[2].launchc, "the loss of the launcher")
}

func TestInput(t *testing.T) {
	const nodes = 7
	r := newRig(t, rigOptions{nodes: nodes, limits: Limits{FanOut: 2}, launcher: true, inputNodes: seq(nodes)})
	a := r.dial(&collector{})
	defer a.Close()
	text := strings.Repeat("all that is read\n", 100_000)
	go func() {
		a.Input([]byte(text))
		a.Input(nil)
	}()
	r.each(func(i int, n *Node) error {
		var files []*os.File
		var wg sync.WaitGroup
		got := make([]int, 3)
		for k := range got {
			read, write := pipe(t, 1)
			files = append(files, write)
			wg.Go(func() {
				defer read.Close()
				if k == 2 {
					io.ReadFull(read, make([]byte, 10)) // it reads no more: that is not to stop the others
					return
				}
				b, err := io.ReadAll(read)
				if got[k] = len(b); err != nil || string(b) != text {
					t.Errorf("node %d task %d: %d bytes of %d, %v", i, k, len(b), len(text), err)
				}
			})
		}
		n.Input(files)
		wg.Wait()
		return nil
	})
	r.finish()
	if err := a.Wait(); err != nil {
		t.Error(err)
	}
}

// Input for the tasks of one node is sent to no other, and its end is told when
// they read no more.
func TestInputOfOneNode(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 7, limits: Limits{FanOut: 2}, launcher: true, inputNodes: []int{5}})
	a := r.dial(&collector{})
	defer a.Close()
	for i, n := range r.nodes {
		if i != 5 {
			n.Input(nil)
		}
	}
	read, write := pipe(t, 1)
	r.nodes[5].Input([]*os.File{write})
	if err := a.Input([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(read, b); err != nil || string(b) != "hello" {
		t.Fatalf("read %q, %v", b, err)
	}
	read.Close()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := a.Input([]byte("more"))
		if errors.Is(err, ErrInputClosed) {
			break
		}
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the end of the last reader was not told: %v", err)
		}
		time.Sleep(time.Millisecond)
	}
	if n := r.nodes[2].down[6].sent.Load() + r.nodes[0].down[1].sent.Load(); n > 8 {
		t.Errorf("%d frames went where nobody reads", n)
	}
	r.finish()
	if err := a.Wait(); err != nil {
		t.Error(err)
	}
}

// The launcher goes away: all hear of it, the tasks' pipes are closed, their
// input ends, and the step comes to its end without it.
func TestLauncherLost(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 4, limits: Limits{FanOut: 2}, launcher: true, inputNodes: seq(4)})
	a := r.dial(&collector{})
	for i, s := range r.steps {
		within(t, s.readyc, fmt.Sprint("the launcher on node ", i))
	}
	out, task := pipe(t, 0)
	r.nodes[3].Output(1, 3, out)
	in, write := pipe(t, 1)
	for i, n := range r.nodes {
		if i != 3 {
			n.Input(nil)
		}
	}
	r.nodes[3].Input([]*os.File{write})
	a.l.fail(errors.New("killed"))
	a.Close()
	for i, s := range r.steps {
		within(t, s.launchc, fmt.Sprint("the launcher's loss on node ", i))
	}
	if _, err := io.ReadAll(in); err != nil {
		t.Error(err)
	}
	in.Close()
	deadline := time.Now().Add(20 * time.Second)
	for {
		if _, err := task.Write([]byte("x")); errors.Is(err, unix.EPIPE) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a task may write for ever")
		}
		time.Sleep(time.Millisecond)
	}
	task.Close()
	r.finish()
}

func TestOrder(t *testing.T) {
	r := newRig(t, rigOptions{nodes: 9, limits: Limits{FanOut: 2}, launcher: true})
	a := r.dial(&collector{})
	defer a.Close()
	if err := a.Order([]byte("signal 10")); err != nil {
		t.Fatal(err)
	}
	for i, s := range r.steps {
		if got := <-s.orders; got != "signal 10" {
			t.Errorf("node %d was ordered %q", i, got)
		}
	}
	r.finish()
	if err := a.Wait(); err != nil {
		t.Error(err)
	}
}
