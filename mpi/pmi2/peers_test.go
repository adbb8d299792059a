package pmi2

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

// fakeNet joins the plugins of several nodes in this process, as launch.Peers says.
type fakeNet struct {
	n int

	mu       sync.Mutex
	meetings map[string][]*meeting                                                 // guarded by mu, by name: those that are not over
	handlers map[int]map[string]func(context.Context, int, []byte) ([]byte, error) // guarded by mu
}

// meeting is one Allgather.
type meeting struct {
	parts [][]byte
	came  []bool
	whole chan struct{}
}

func newFakeNet(n int) *fakeNet {
	return &fakeNet{n: n, meetings: make(map[string][]*meeting), handlers: make(map[int]map[string]func(context.Context, int, []byte) ([]byte, error))}
}

// fakePeers is the net seen from one node.
type fakePeers struct {
	net  *fakeNet
	self int
}

func (p fakePeers) Allgather(ctx context.Context, name string, nodes []int, data []byte) ([][]byte, error) {
	if nodes == nil {
		for i := range p.net.n {
			nodes = append(nodes, i)
		}
	}
	m := p.net.meet(name+fmt.Sprint(nodes), len(nodes), slices.Index(nodes, p.self), data)
	select {
	case <-m.whole:
		return m.parts, nil
	case <-ctx.Done():
	}
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	var missing []int
	for i, came := range m.came {
		if !came {
			missing = append(missing, nodes[i])
		}
	}
	return nil, &launch.MissingError{Name: name, Nodes: missing, Cause: context.Cause(ctx)}
}

// meet puts data into the first meeting to which that node has not come.
func (n *fakeNet) meet(key string, size, at int, data []byte) *meeting {
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.IndexFunc(n.meetings[key], func(m *meeting) bool { return !m.came[at] })
	if i < 0 {
		i = len(n.meetings[key])
		n.meetings[key] = append(n.meetings[key], &meeting{parts: make([][]byte, size), came: make([]bool, size), whole: make(chan struct{})})
	}
	m := n.meetings[key][i]
	m.parts[at], m.came[at] = data, true
	if !slices.Contains(m.came, false) {
		close(m.whole)
		n.meetings[key] = slices.Delete(n.meetings[key], i, i+1)
	}
	return m
}

func (p fakePeers) Call(ctx context.Context, node int, name string, data []byte) ([]byte, error) {
	p.net.mu.Lock()
	answer := p.net.handlers[node][name]
	p.net.mu.Unlock()
	if answer == nil {
		return nil, fmt.Errorf("cannot call %q of node %d: nobody is there", name, node)
	}
	return answer(ctx, p.self, data)
}

func (p fakePeers) Handle(name string, answer func(context.Context, int, []byte) ([]byte, error)) {
	p.net.mu.Lock()
	defer p.net.mu.Unlock()
	if p.net.handlers[p.self] == nil {
		p.net.handlers[p.self] = make(map[string]func(context.Context, int, []byte) ([]byte, error))
	}
	p.net.handlers[p.self][name] = answer
}

// cluster is a step of several nodes whose ranks are played by the test.
type cluster struct {
	t     *testing.T
	net   *fakeNet
	nodes []*world
	ranks map[int]*fake
}

// newCluster makes a step whose ranks are on nodes as the lists say.
func newCluster(t *testing.T, conf step.PMI2Conf, lists ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, net: newFakeNet(len(lists)), ranks: make(map[int]*fake)}
	l := &step.Layout{}
	total := 0
	for i, list := range lists {
		ranks, err := step.ParseCPUList(list)
		if err != nil {
			t.Fatal(err)
		}
		total += len(ranks)
		l.Nodes = append(l.Nodes, step.LayoutNode{Name: fmt.Sprint("n", i), Ranks: list})
	}
	for i := range lists {
		w := newWorldWith(t, conf, fakePeers{c.net, i}, func(s *step.Spec) {
			s.NTasks, s.Layout, s.NodeID, s.NodeName = total, l, uint32(i), fmt.Sprint("n", i)
		})
		c.nodes = append(c.nodes, w)
		for _, f := range w.ranks {
			c.ranks[f.n] = f
		}
	}
	return c
}

// together runs play for every rank of all nodes at once.
func (c *cluster) together(play func(f *fake)) {
	var all sync.WaitGroup
	for _, f := range c.ranks {
		all.Go(func() { play(f) })
	}
	all.Wait()
}

// exit ends a rank's task.
func (c *cluster) exit(rank int, status step.ExitStatus) {
	for _, w := range c.nodes {
		w.plugin.TaskExited(rank, status) // the other nodes' plugins do not know it
	}
	c.ranks[rank].file.Close()
}

// wantQuiet checks that no node said anything.
func (c *cluster) wantQuiet() {
	c.t.Helper()
	for _, w := range c.nodes {
		w.wantQuiet()
	}
}
