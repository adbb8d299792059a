package stepnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"stepd/step"
	"stepd/step/launch"
)

// gatherKey names a gathering: those who meet say the same.
type gatherKey struct{ name, nodes string }

// gatherings are those that go on. Contributions go up the tree, combined at each
// node, to the lowest node that has all who meet below it, and the whole comes down.
//
// There is one of each key at a time, on each node: the next call waits for the
// end of the one before, also where its caller has given up waiting. What a node
// has once given stays given.
type gatherings struct {
	n *Node

	mu    sync.Mutex
	going map[gatherKey]*gathering // guarded by mu
	turns map[gatherKey]*turn      // guarded by mu
	held  int                      // guarded by mu: bytes of all of them
	ended error                    // guarded by mu: there will be no more
}

// gathering is one, seen from one node.
type gathering struct {
	key    gatherKey
	nodes  []int // who meet, ascending
	meet   int   // where
	need   int   // how many of them are below this node, or it
	came   map[int]bool
	parts  []entry
	bytes  int
	fail   string
	caller chan gathered // size 1; nil: no caller on this node yet
}

type gathered struct {
	parts []entry
	err   error
}

// turn is the queue of this node's callers of one key.
type turn struct {
	held  chan struct{} // size 1: full while one is in a gathering
	users int           // guarded by mu
}

// gatherNameMax bounds a gathering's name, and a call's.
const gatherNameMax = 4096

// Allgather implements launch.Peers.
func (m *gatherings) Allgather(ctx context.Context, name string, nodes []int, data []byte) ([][]byte, error) {
	nodes, err := m.whoMeet(nodes)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot gather %.80q: %w", name, err)
	case len(name) > gatherNameMax:
		return nil, fmt.Errorf("cannot gather %.80q...: a name of %d bytes: at most %d", name, len(name), gatherNameMax)
	case len(data) > m.n.lim.Gather:
		return nil, fmt.Errorf("cannot gather %.80q: %d bytes: at most %d for all nodes together", name, len(data), m.n.lim.Gather)
	case len(nodes) == 1:
		return [][]byte{data}, m.n.lostError()
	}
	key := gatherKey{name, step.FormatCPUList(nodes)}
	result, err := m.begin(ctx, key, nodes, data)
	if err == nil {
		select {
		case g := <-result:
			return values(g.parts), g.err
		case <-ctx.Done():
		}
		err = context.Cause(ctx)
	}
	if lost := m.n.lostError(); lost != nil {
		return nil, lost
	}
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) { // the step ends: who is missing means nothing any more
		return nil, fmt.Errorf("cannot gather %.80q: %w", name, err)
	}
	missing := m.whoMisses(key, nodes)
	if result != nil {
		select {
		case g := <-result: // it came while we asked
			return values(g.parts), g.err
		default:
		}
	}
	return nil, &launch.MissingError{Name: name, Nodes: missing, Cause: err}
}

func values(parts []entry) [][]byte {
	var v [][]byte
	for _, e := range parts {
		v = append(v, e.data)
	}
	return v
}

// whoMeet checks the nodes of a gathering; nil are all.
func (m *gatherings) whoMeet(nodes []int) ([]int, error) {
	if nodes == nil {
		nodes = make([]int, m.n.nodes)
		for i := range nodes {
			nodes[i] = i
		}
		return nodes, nil
	}
	last := -1
	for _, i := range nodes {
		if i <= last || i >= m.n.nodes {
			return nil, fmt.Errorf("nodes %v: want ascending ids below %d", nodes, m.n.nodes)
		}
		last = i
	}
	if !slices.Contains(nodes, m.n.self) {
		return nil, fmt.Errorf("nodes %v: node %d, which calls, is not among them", nodes, m.n.self)
	}
	return nodes, nil
}

// begin waits for this key's turn and gives this node's part.
func (m *gatherings) begin(ctx context.Context, key gatherKey, nodes []int, data []byte) (chan gathered, error) {
	m.mu.Lock()
	if m.ended != nil {
		defer m.mu.Unlock()
		return nil, m.ended
	}
	t := m.turns[key]
	if t == nil {
		t = &turn{held: make(chan struct{}, 1)}
		m.turns[key] = t
	}
	t.users++
	m.mu.Unlock()
	select {
	case t.held <- struct{}{}:
	case <-ctx.Done():
		m.mu.Lock()
		defer m.mu.Unlock()
		m.leave(key, t)
		return nil, context.Cause(ctx)
	}
	result := make(chan gathered, 1)
	err := m.contribute(key, nodes, []entry{{m.n.self, data}}, "", result)
	return result, err
}

// leave is called with mu held.
func (m *gatherings) leave(key gatherKey, t *turn) {
	if t.users--; t.users == 0 {
		delete(m.turns, key)
	}
}

// contribute adds what has come, from this node's caller or from below, and sends
// it on when it is all.
func (m *gatherings) contribute(key gatherKey, nodes []int, parts []entry, fail string, caller chan gathered) error {
	m.mu.Lock()
	if m.ended != nil {
		defer m.mu.Unlock()
		if caller != nil {
			caller <- gathered{err: m.ended}
		}
		return nil
	}
	g := m.going[key]
	if g == nil {
		g = &gathering{key: key, nodes: nodes, meet: m.n.meeting(nodes), came: make(map[int]bool)}
		for _, i := range nodes {
			if m.n.below(i, m.n.self) {
				g.need++
			}
		}
		m.going[key] = g
	}
	if caller != nil {
		g.caller = caller
	}
	g.fail = cmp.Or(g.fail, fail)
	for _, e := range parts {
		if g.came[e.node] {
			m.mu.Unlock()
			return fmt.Errorf("%w: node %d came twice to %.80q", errFrame, e.node, key.name)
		}
		g.came[e.node] = true
		m.hold(g, e)
	}
	if len(g.came) < g.need {
		m.mu.Unlock()
		return nil
	}
	p := g.part()
	if g.meet != m.n.self {
		// It stays until the whole comes down, but not what was sent.
		m.release(g)
		m.mu.Unlock()
		// Where the parent is gone that is the gathering's end, and no fault of
		// who has brought this part.
		_ = m.n.up.pushWait(m.n.ctx, p.frame(kindGatherUp))
		return nil
	}
	m.conclude(g, p)
	m.mu.Unlock()
	return m.passDown(g, p.frame(kindGatherDown))
}

// hold adds one part, within the limits; beyond them the gathering fails for
// all, when all have come. The caller holds mu.
func (m *gatherings) hold(g *gathering, e entry) {
	switch size := len(e.data); {
	case g.fail != "":
	case g.bytes+size > m.n.lim.Gather:
		g.fail = fmt.Sprintf("more than %d bytes together", m.n.lim.Gather)
	case m.held+size > m.n.lim.GatherAll:
		g.fail = fmt.Sprintf("node %q holds more than %d bytes of gatherings that go on", m.n.cfg.Names[m.n.self], m.n.lim.GatherAll)
	default:
		g.bytes += size
		m.held += size
	}
	if g.fail != "" {
		m.release(g)
		e.data = nil
	}
	g.parts = append(g.parts, e)
}

// release drops the data. The caller holds mu.
func (m *gatherings) release(g *gathering) {
	m.held -= g.bytes
	g.bytes = 0
	parts := g.parts
	g.parts = nil
	if g.fail == "" {
		return
	}
	for _, e := range parts { // who came still counts
		g.parts = append(g.parts, entry{node: e.node})
	}
}

// part is what there is, in the order of nodes.
func (g *gathering) part() *part {
	slices.SortFunc(g.parts, func(a, b entry) int { return a.node - b.node })
	return &part{name: g.key.name, nodes: g.key.nodes, problem: g.fail, entries: g.parts}
}

// conclude ends a gathering on this node. The caller holds mu.
func (m *gatherings) conclude(g *gathering, p *part) {
	m.held -= g.bytes
	delete(m.going, g.key)
	if g.caller == nil {
		return
	}
	got := gathered{parts: p.entries}
	if p.problem != "" {
		got = gathered{err: fmt.Errorf("cannot gather %.80q: %s", g.key.name, p.problem)}
	}
	m.answer(g.key, g.caller, got)
}

// answer ends a caller's gathering, and lets the next one of this key begin. The caller
// holds mu.
func (m *gatherings) answer(key gatherKey, caller chan gathered, got gathered) {
	caller <- got
	t := m.turns[key]
	<-t.held
	m.leave(key, t)
}

// passDown sends the whole to the children below which a node takes part.
func (m *gatherings) passDown(g *gathering, f frame) error {
	for c, l := range m.n.down { // a node that is lost has failed it already
		if slices.ContainsFunc(g.nodes, func(i int) bool { return m.n.below(i, c) }) {
			if err := l.pushWait(m.n.ctx, f); err != nil && m.n.ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

// gatheredBelow takes what has come together below a child.
func (m *gatherings) gatheredBelow(l *link, body []byte) error {
	p, err := parsePart(body)
	if err != nil {
		return err
	}
	nodes, err := m.parseNodes(p.nodes)
	if err != nil {
		return err
	}
	for _, e := range p.entries {
		if _, meets := slices.BinarySearch(nodes, e.node); !meets || !m.n.below(e.node, l.peer) {
			return fmt.Errorf("%w: node %d is not to come to %.80q", errFrame, e.node, p.name)
		}
	}
	return m.contribute(gatherKey{p.name, p.nodes}, nodes, p.entries, p.problem, nil)
}

func (m *gatherings) parseNodes(list string) ([]int, error) {
	nodes, err := step.ParseCPUList(list)
	if err != nil || len(nodes) < 2 || nodes[len(nodes)-1] >= m.n.nodes || step.FormatCPUList(nodes) != list {
		return nil, fmt.Errorf("%w: nodes %.80q", errFrame, list)
	}
	return nodes, nil
}

// gatheredAbove takes the whole.
func (m *gatherings) gatheredAbove(body []byte) error {
	p, err := parsePart(body)
	if err != nil {
		return err
	}
	m.mu.Lock()
	g := m.going[gatherKey{p.name, p.nodes}]
	if g == nil {
		m.mu.Unlock()
		if m.n.lostError() != nil {
			return nil
		}
		return fmt.Errorf("%w: no caller on this node waits for %.80q", errFrame, p.name)
	}
	m.conclude(g, p)
	m.mu.Unlock()
	return m.passDown(g, p.frame(kindGatherDown))
}

// fail ends all that go on, and those to come.
func (m *gatherings) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended != nil {
		return
	}
	m.ended = err
	for key, g := range m.going {
		delete(m.going, key)
		if g.caller == nil {
			continue
		}
		m.answer(key, g.caller, gathered{err: err})
	}
	m.held = 0
}

// whoName is the call by which nodes ask each other who has not come.
const whoName = "\x00who has not come"

// whoMisses asks the tree who has not come to a gathering.
func (m *gatherings) whoMisses(key gatherKey, nodes []int) []int {
	ctx, cancel := context.WithTimeout(m.n.ctx, m.n.lim.Who)
	defer cancel()
	missing, err := m.askWho(ctx, m.n.meeting(nodes), key)
	if err != nil {
		m.n.log("cannot tell who has not come to %.80q: %v", key.name, err)
	}
	return missing
}

func (m *gatherings) askWho(ctx context.Context, node int, key gatherKey) ([]int, error) {
	answer, err := m.n.Call(ctx, node, whoName, newFrame(kindCall, 0).str(key.name).str(key.nodes).B[frameHead:])
	if err != nil {
		return nil, err
	}
	return step.ParseCPUList(string(answer))
}

// answerWho lists who of this node and those below has not come. Who cannot
// be asked counts among them.
func (m *gatherings) answerWho(ctx context.Context, _ int, question []byte) ([]byte, error) {
	d := newDecoder(question)
	key := gatherKey{d.str(), d.str()}
	nodes, err := m.parseNodes(key.nodes)
	if err = errors.Join(d.end(), err); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var missing []int // guarded by mu
	ask := make(map[int][]int)
	m.mu.Lock()
	g := m.going[key]
	for _, i := range nodes {
		switch {
		case (g != nil && g.came[i]) || !m.n.below(i, m.n.self):
		case i == m.n.self:
			missing = append(missing, i)
		default:
			ask[m.n.towards(i)] = append(ask[m.n.towards(i)], i)
		}
	}
	m.mu.Unlock()
	var wg sync.WaitGroup
	for c, below := range ask {
		wg.Go(func() {
			if known, err := m.askWho(ctx, c, key); err == nil {
				below = known
			}
			mu.Lock()
			defer mu.Unlock()
			missing = append(missing, below...)
		})
	}
	wg.Wait()
	slices.Sort(missing)
	return []byte(step.FormatCPUList(missing)), nil
}
