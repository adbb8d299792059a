package stepnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// Node is this stepd's place in its step's tree. Make it with New; Finish and then
// Close end it. Its methods may be called from any goroutine.
type Node struct {
	cfg Config
	lim Limits
	tree
	up   *link         // to the parent; nil of node 0
	down map[int]*link // to the children, by node id

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	lost *LostError // guarded by mu: the first node that was lost
	life            // guarded by mu

	*gatherings
	calls
}

// life is how far the step is towards its end.
type life struct {
	done      bool         // this node needs the others no more
	doneBelow map[int]bool // nor do all below these children, or they are lost
	toldDone  bool
	isOver    bool
	over      chan struct{} // closed when all nodes are done
}

var _ launch.Peers = (*Node)(nil)

// errOver is the answer to what comes after the end.
var errOver = errors.New("the step is over")

// New makes a node whose links are still to be attached: what it sends before then waits.
func New(cfg Config) (*Node, error) {
	lim := cfg.Limits.withDefaults()
	n := &Node{cfg: cfg, lim: lim, tree: tree{cfg.Self, len(cfg.Names), lim.FanOut}, down: make(map[int]*link)}
	if cfg.Self < 0 || cfg.Self >= n.nodes {
		return nil, fmt.Errorf("cannot join the stepds of a step: it has %d nodes, and no node %d", n.nodes, cfg.Self)
	}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.over, n.doneBelow = make(chan struct{}), make(map[int]bool)
	n.gatherings = &gatherings{n: n, going: make(map[gatherKey]*gathering), turns: make(map[gatherKey]*turn)}
	n.asked, n.answers, n.more = make(map[int]chan *call), make(map[string]Answer), make(chan struct{})
	n.asking = make(chan struct{}, lim.Calls)
	for _, c := range n.children() {
		n.down[c] = newLink(c, n.lim.frameMax(), n.fromBelow, n.linkEnded)
	}
	if !n.root() {
		n.up = newLink(n.parent(), n.lim.frameMax(), n.fromAbove, n.linkEnded)
	}
	n.Handle(whoName, n.answerWho)
	n.wg.Go(n.tick)
	return n, nil
}

// Parent is the node id of this node's parent, -1 of node 0.
func (n *Node) Parent() int {
	if n.up == nil {
		return -1
	}
	return n.up.peer
}

// Children are the node ids of this node's children.
func (n *Node) Children() []int { return n.children() }

// Attach joins this node to its parent, or to a child, by a connection, which the node takes
// over: it is closed where the link is gone already, or has one.
func (n *Node) Attach(peer int, conn io.ReadWriteCloser) {
	if l := n.neighbour(peer); l == nil || !l.attach(conn) {
		conn.Close()
	}
}

// Unattached are the neighbours that are neither joined nor lost.
func (n *Node) Unattached() (peers []int) {
	for _, l := range n.links() {
		if !l.isUp() && !l.isGone() {
			peers = append(peers, l.peer)
		}
	}
	return peers
}

// Over reports whether all nodes have said that they need no other any more.
func (n *Node) Over() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isOver
}

// Lose says that a neighbour is lost. Nothing happens where its part was over.
func (n *Node) Lose(peer int, cause string) {
	if l := n.neighbour(peer); l != nil {
		l.fail(errors.New(cause))
	}
}

// neighbour is the link to a node, nil of one that is neither parent nor child.
func (n *Node) neighbour(peer int) *link {
	if l := n.down[peer]; l != nil {
		return l
	}
	if n.up != nil && n.up.peer == peer {
		return n.up
	}
	return nil
}

// links are all of them.
func (n *Node) links() (all []*link) {
	if n.up != nil {
		all = append(all, n.up)
	}
	for _, c := range n.children() {
		all = append(all, n.down[c])
	}
	return all
}

// tick keeps the links alive, and finds those that are not.
func (n *Node) tick() {
	t := time.NewTicker(n.lim.Ping / beatsPerPing)
	defer t.Stop()
	pulses := make(map[*link]*pulse)
	for _, l := range n.links() {
		pulses[l] = new(pulse)
	}
	for {
		select {
		case <-t.C:
			for l, p := range pulses {
				p.beat(l, n.lim.Ping)
			}
		case <-n.ctx.Done():
			return
		}
	}
}

// log writes a line for the administrator.
func (n *Node) log(format string, args ...any) {
	if n.cfg.Log != nil {
		n.cfg.Log(fmt.Sprintf(format, args...))
	}
}

// Finish says that this node needs the others no more, and returns when no node that is
// not lost needs another: until then this node relays for them. ctx's end is its error.
func (n *Node) Finish(ctx context.Context) error {
	n.mu.Lock()
	n.done = true
	n.mu.Unlock()
	n.advance()
	select {
	case <-n.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// advance reports upwards that all nodes below are done. Where no node is above, the step
// is over then.
func (n *Node) advance() {
	n.mu.Lock()
	done := n.done
	for _, c := range n.children() {
		done = done && n.doneBelow[c]
	}
	tell := done && !n.toldDone
	n.toldDone = n.toldDone || done
	n.mu.Unlock()
	switch top := n.up == nil || n.up.isGone(); {
	case done && top:
		n.finished()
	case tell:
		n.up.push(plainFrame(kindDone))
	}
}

// finished says below that the step is over.
func (n *Node) finished() {
	n.mu.Lock()
	already := n.isOver
	n.isOver = true
	n.mu.Unlock()
	if already {
		return
	}
	for _, l := range n.down {
		l.push(plainFrame(kindOver))
	}
	close(n.over)
}

// Close leaves the tree. What was sent before is still delivered, unless ctx ends or
// flushTime passes.
func (n *Node) Close(ctx context.Context) {
	for _, l := range n.links() {
		l.shut()
	}
	ctx, stop := context.WithTimeout(ctx, flushTime)
	defer stop()
	for _, l := range n.links() {
		select {
		case <-l.life.Done(): // the other end has read all and gone as well
		case <-ctx.Done():
		}
	}
	n.cancel(errOver)
	n.failCalls(errOver)
	n.gatherings.fail(errOver)
	for _, l := range n.links() {
		l.fail(errOver)
		l.wg.Wait()
	}
	n.wg.Wait()
}

// Config is what a stepd must know to join its step's tree.
type Config struct {
	// Names are the step's nodes by node id, and Self is this one's id.
	Names []string
	Self  int
	// Lost is called once when a node of the step is lost: then the tree does not hold any
	// more. It must not wait, and may be nil.
	Lost func(err *LostError)
	// Log writes a line for the administrator; it may be nil.
	Log    func(text string)
	Limits Limits
}

// Limits bound what the tree waits for and holds. The zero value is the defaults.
type Limits struct {
	// FanOut is how many children a node has: 16. All nodes of a step have the same.
	FanOut int
	// Who bounds the question who has not come to a gathering: 2 s.
	Who time.Duration
	// Ping is how often a node that has nothing else to say says so; one that was
	// not heard for twelve of them is lost, or whose kernel for two: 5 s.
	Ping time.Duration
	// Message bounds the data of one Call, and of its answer: 16 MiB.
	Message int
	// Gather bounds what one Allgather brings together, and GatherAll all those
	// that go on at a time: 64 MiB and four times as much.
	Gather, GatherAll int
	// Calls is how many calls of one node wait for their answers: 256.
	Calls int
}

func (l Limits) withDefaults() Limits {
	l.FanOut = cmp.Or(l.FanOut, 16)
	l.Who = cmp.Or(l.Who, 2*time.Second)
	l.Ping = cmp.Or(l.Ping, 5*time.Second)
	l.Message = cmp.Or(l.Message, 16<<20)
	l.Gather = cmp.Or(l.Gather, 64<<20)
	l.GatherAll = cmp.Or(l.GatherAll, 4*l.Gather)
	l.Calls = cmp.Or(l.Calls, 256)
	return l
}

// frameMax bounds a frame's body: the largest that the limits allow, with what is
// around it.
func (l Limits) frameMax() int { return max(l.Message, l.Gather) + 64<<10 + 8*step.NodesMax }

// A LostError says which node of a step was lost.
type LostError struct {
	Node  int // its id
	Name  string
	Cause string
}

func (e *LostError) Error() string {
	return fmt.Sprintf("lost node %q (node %d of the step): %s", e.Name, e.Node, e.Cause)
}

// linkEnded is called when a link is gone.
func (n *Node) linkEnded(l *link, err error) {
	if n.ctx.Err() != nil || errors.Is(err, errOver) {
		return // this node has left
	}
	n.mu.Lock()
	fine := n.isOver
	if l == n.up {
		fine = fine || n.toldDone // it has ended, or is lost: our part was done
	} else {
		fine = fine || n.doneBelow[l.peer]
		n.doneBelow[l.peer] = true
	}
	n.mu.Unlock()
	if !fine {
		n.lose(l.peer, err.Error(), nil)
	}
	n.advance()
}

// lose notes that a node is lost, once, and reports it to all but the
// neighbour that reported it.
func (n *Node) lose(node int, cause string, from *link) {
	err := &LostError{Node: node, Name: n.cfg.Names[node], Cause: cause}
	n.mu.Lock()
	if n.lost != nil || n.isOver {
		n.mu.Unlock()
		return
	}
	n.lost = err
	n.mu.Unlock()
	if n.cfg.Lost != nil { // first: who waits may take its own failure for the cause
		n.cfg.Lost(err)
	}
	n.gatherings.fail(err)
	n.failCalls(err)
	for _, l := range n.links() {
		if l != from {
			l.push(lostFrame(node, cause))
		}
	}
}

// lostError is why the tree does not hold any more, nil where it does.
func (n *Node) lostError() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.lost != nil:
		return n.lost
	case n.isOver:
		return errOver
	}
	return nil
}

var errUnasked = fmt.Errorf("%w: not from there", errFrame)

// fromAbove takes a frame of the parent.
func (n *Node) fromAbove(l *link, k kind, body []byte) error {
	switch k {
	case kindOver:
		if !n.saidDone() {
			return errUnasked
		}
		n.finished()
		return nil
	case kindGatherDown:
		return n.gatheredAbove(body)
	}
	return n.fromBoth(l, k, body)
}

// fromBelow takes a frame of a child.
func (n *Node) fromBelow(l *link, k kind, body []byte) error {
	switch k {
	case kindDone:
		n.mu.Lock()
		n.doneBelow[l.peer] = true
		n.mu.Unlock()
		n.advance()
		return nil
	case kindGatherUp:
		return n.gatheredBelow(l, body)
	}
	return n.fromBoth(l, k, body)
}

// fromBoth takes what may come from any neighbour.
func (n *Node) fromBoth(l *link, k kind, body []byte) error {
	switch k {
	case kindLost:
		node, cause, err := parseLost(body)
		if err != nil {
			return err
		}
		if node < 0 || node >= n.nodes {
			return errFrame
		}
		n.lose(node, cause, l)
		return nil
	case kindCall, kindReply:
		c, err := parseCall(k, body)
		if err != nil {
			return err
		}
		return n.route(k, c)
	}
	return errUnasked
}

// saidDone reports whether this node and all below it have said that they are done: before
// that, the parent may not say that the step is over.
func (n *Node) saidDone() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.toldDone
}
