package stepnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"stepd/step"
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
	gathMu    sync.Mutex
	going     map[gatherKey]*gathering // guarded by gathMu
	turns     map[gatherKey]*turn      // guarded by gathMu
	gathBytes int                      // guarded by gathMu: held for all of them
	gathErr   error                    // guarded by gathMu: there will be no more
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
	users int           // guarded by gathMu
}

func (g *gatherings) init() {
	g.going, g.turns = make(map[gatherKey]*gathering), make(map[gatherKey]*turn)
}

// gatherNameMax bounds a gathering's name, and a call's.
const gatherNameMax = 4096

// Allgather implements step.Peers.
func (n *Node) Allgather(ctx context.Context, name string, nodes []int, data []byte) ([][]byte, error) {
	nodes, err := n.whoMeet(nodes)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot gather %.80q: %w", name, err)
	case len(name) > gatherNameMax:
		return nil, fmt.Errorf("cannot gather %.80q...: a name of %d bytes: at most %d", name, len(name), gatherNameMax)
	case len(data) > n.lim.Gather:
		return nil, fmt.Errorf("cannot gather %.80q: %d bytes: at most %d for all nodes together", name, len(data), n.lim.Gather)
	case len(nodes) == 1:
		return [][]byte{data}, n.lostError()
	}
	key := gatherKey{name, step.FormatCPUList(nodes)}
	result, err := n.begin(ctx, key, nodes, data)
	if err == nil {
		select {
		case g := <-result:
			return values(g.parts), g.err
		case <-ctx.Done():
		}
		err = context.Cause(ctx)
	}
	if lost := n.lostError(); lost != nil {
		return nil, lost
	}
	missing := n.whoMisses(key, nodes)
	if result != nil {
		select {
		case g := <-result: // it came while we asked
			return values(g.parts), g.err
		default:
		}
	}
	return nil, &step.MissingError{Name: name, Nodes: missing, Cause: err}
}

func values(parts []entry) [][]byte {
	var v [][]byte
	for _, e := range parts {
		v = append(v, e.data)
	}
	return v
}

// whoMeet checks the nodes of a gathering; nil are all.
func (n *Node) whoMeet(nodes []int) ([]int, error) {
	if nodes == nil {
		nodes = make([]int, n.nodes)
		for i := range nodes {
			nodes[i] = i
		}
		return nodes, nil
	}
	last := -1
	for _, i := range nodes {
		if i <= last || i >= n.nodes {
			return nil, fmt.Errorf("nodes %v: want ascending ids below %d", nodes, n.nodes)
		}
		last = i
	}
	if !slices.Contains(nodes, n.self) {
		return nil, fmt.Errorf("nodes %v: node %d, which calls, is not among them", nodes, n.self)
	}
	return nodes, nil
}

// begin waits for this key's turn and gives this node's part.
func (n *Node) begin(ctx context.Context, key gatherKey, nodes []int, data []byte) (chan gathered, error) {
	n.gathMu.Lock()
	if n.gathErr != nil {
		defer n.gathMu.Unlock()
		return nil, n.gathErr
	}
	t := n.turns[key]
	if t == nil {
		t = &turn{held: make(chan struct{}, 1)}
		n.turns[key] = t
	}
	t.users++
	n.gathMu.Unlock()
	select {
	case t.held <- struct{}{}:
	case <-ctx.Done():
		n.gathMu.Lock()
		defer n.gathMu.Unlock()
		n.leave(key, t)
		return nil, context.Cause(ctx)
	}
	result := make(chan gathered, 1)
	err := n.contribute(key, nodes, []entry{{n.self, data}}, "", result)
	return result, err
}

// leave is called with gathMu held.
func (n *Node) leave(key gatherKey, t *turn) {
	if t.users--; t.users == 0 {
		delete(n.turns, key)
	}
}

// contribute adds what has come, from this node's caller or from below, and sends
// it on when it is all.
func (n *Node) contribute(key gatherKey, nodes []int, parts []entry, fail string, caller chan gathered) error {
	n.gathMu.Lock()
	if n.gathErr != nil {
		defer n.gathMu.Unlock()
		if caller != nil {
			caller <- gathered{err: n.gathErr}
		}
		return nil
	}
	g := n.going[key]
	if g == nil {
		g = &gathering{key: key, nodes: nodes, meet: n.meeting(nodes), came: make(map[int]bool)}
		for _, i := range nodes {
			if n.below(i, n.self) {
				g.need++
			}
		}
		n.going[key] = g
	}
	if caller != nil {
		g.caller = caller
	}
	if g.fail == "" {
		g.fail = fail
	}
	for _, e := range parts {
		if g.came[e.node] {
			n.gathMu.Unlock()
			return fmt.Errorf("%w: node %d came twice to %.80q", errFrame, e.node, key.name)
		}
		g.came[e.node] = true
		n.hold(g, e)
	}
	if len(g.came) < g.need {
		n.gathMu.Unlock()
		return nil
	}
	p := g.part()
	if g.meet != n.self {
		// It stays until the whole comes down, but not what was sent.
		n.release(g)
		n.gathMu.Unlock()
		// Where the parent is gone that is the gathering's end, and no fault of
		// who has brought this part.
		_ = n.up.pushWait(n.ctx, p.frame(kindGatherUp))
		return nil
	}
	n.conclude(g, p)
	n.gathMu.Unlock()
	return n.passDown(g, p.frame(kindGatherDown))
}

// hold adds one part, within the limits; beyond them the gathering fails for
// all, when all have come. The caller holds gathMu.
func (n *Node) hold(g *gathering, e entry) {
	switch size := len(e.data); {
	case g.fail != "":
	case g.bytes+size > n.lim.Gather:
		g.fail = fmt.Sprintf("more than %d bytes together", n.lim.Gather)
	case n.gathBytes+size > n.lim.GatherAll:
		g.fail = fmt.Sprintf("node %q holds more than %d bytes of gatherings that go on", n.cfg.Names[n.self], n.lim.GatherAll)
	default:
		g.bytes += size
		n.gathBytes += size
	}
	if g.fail != "" {
		n.release(g)
		e.data = nil
	}
	g.parts = append(g.parts, e)
}

// release drops the data. The caller holds gathMu.
func (n *Node) release(g *gathering) {
	n.gathBytes -= g.bytes
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

// conclude ends a gathering on this node. The caller holds gathMu.
func (n *Node) conclude(g *gathering, p *part) {
	n.gathBytes -= g.bytes
	delete(n.going, g.key)
	if g.caller == nil {
		return
	}
	got := gathered{parts: p.entries}
	if p.problem != "" {
		got = gathered{err: fmt.Errorf("cannot gather %.80q: %s", g.key.name, p.problem)}
	}
	n.answer(g.key, g.caller, got)
}

// answer ends a caller's gathering, and lets the next one of this key begin. The caller
// holds gathMu.
func (n *Node) answer(key gatherKey, caller chan gathered, got gathered) {
	caller <- got
	t := n.turns[key]
	<-t.held
	n.leave(key, t)
}

// passDown sends the whole to the children below which a node takes part.
func (n *Node) passDown(g *gathering, f frame) error {
	for c, l := range n.down { // a node that is lost has failed it already
		if slices.ContainsFunc(g.nodes, func(i int) bool { return n.below(i, c) }) {
			if err := l.pushWait(n.ctx, f); err != nil && n.ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

// gatheredBelow takes what has come together below a child.
func (n *Node) gatheredBelow(l *link, body []byte) error {
	p, err := parsePart(body)
	if err != nil {
		return err
	}
	nodes, err := n.parseNodes(p.nodes)
	if err != nil {
		return err
	}
	for _, e := range p.entries {
		if _, meets := slices.BinarySearch(nodes, e.node); !meets || !n.below(e.node, l.peer) {
			return fmt.Errorf("%w: node %d is not to come to %.80q", errFrame, e.node, p.name)
		}
	}
	return n.contribute(gatherKey{p.name, p.nodes}, nodes, p.entries, p.problem, nil)
}

func (n *Node) parseNodes(list string) ([]int, error) {
	nodes, err := step.ParseCPUList(list)
	if err != nil || len(nodes) < 2 || nodes[len(nodes)-1] >= n.nodes || step.FormatCPUList(nodes) != list {
		return nil, fmt.Errorf("%w: nodes %.80q", errFrame, list)
	}
	return nodes, nil
}

// gatheredAbove takes the whole.
func (n *Node) gatheredAbove(body []byte) error {
	p, err := parsePart(body)
	if err != nil {
		return err
	}
	n.gathMu.Lock()
	g := n.going[gatherKey{p.name, p.nodes}]
	if g == nil {
		n.gathMu.Unlock()
		if n.lostError() != nil {
			return nil
		}
		return fmt.Errorf("%w: no caller on this node waits for %.80q", errFrame, p.name)
	}
	n.conclude(g, p)
	n.gathMu.Unlock()
	return n.passDown(g, p.frame(kindGatherDown))
}

// failGatherings ends all that go on, and those to come.
func (n *Node) failGatherings(err error) {
	n.gathMu.Lock()
	defer n.gathMu.Unlock()
	if n.gathErr != nil {
		return
	}
	n.gathErr = err
	for key, g := range n.going {
		delete(n.going, key)
		if g.caller == nil {
			continue
		}
		n.answer(key, g.caller, gathered{err: err})
	}
	n.gathBytes = 0
}

// whoName is the call by which nodes ask each other who has not come.
const whoName = "\x00who has not come"

// whoMisses asks the tree who has not come to a gathering.
func (n *Node) whoMisses(key gatherKey, nodes []int) []int {
	ctx, cancel := context.WithTimeout(n.ctx, n.lim.Who)
	defer cancel()
	missing, err := n.askWho(ctx, n.meeting(nodes), key)
	if err != nil {
		n.log("cannot tell who has not come to %.80q: %v", key.name, err)
	}
	return missing
}

func (n *Node) askWho(ctx context.Context, node int, key gatherKey) ([]int, error) {
	answer, err := n.Call(ctx, node, whoName, newFrame(kindCall, 0).str(key.name).str(key.nodes).b[frameHead:])
	if err != nil {
		return nil, err
	}
	return step.ParseCPUList(string(answer))
}

// answerWho lists who of this node and those below has not come. Who cannot
// be asked counts among them.
func (n *Node) answerWho(ctx context.Context, _ int, question []byte) ([]byte, error) {
	d := decoder{b: question}
	key := gatherKey{d.str(), d.str()}
	nodes, err := n.parseNodes(key.nodes)
	if err = errors.Join(d.end(), err); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var missing []int // guarded by mu
	ask := make(map[int][]int)
	n.gathMu.Lock()
	g := n.going[key]
	for _, i := range nodes {
		switch {
		case (g != nil && g.came[i]) || !n.below(i, n.self):
		case i == n.self:
			missing = append(missing, i)
		default:
			ask[n.towards(i)] = append(ask[n.towards(i)], i)
		}
	}
	n.gathMu.Unlock()
	var wg sync.WaitGroup
	for c, below := range ask {
		wg.Go(func() {
			if known, err := n.askWho(ctx, c, key); err == nil {
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
