package stepnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

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

// New joins the tree by the connections of cfg.
func New(cfg Config) (*Node, error) {
	lim := cfg.Limits.withDefaults()
	n := &Node{cfg: cfg, lim: lim, tree: tree{cfg.Self, len(cfg.Names), lim.FanOut}, down: make(map[int]*link)}
	if cfg.Self < 0 || cfg.Self >= n.nodes {
		return nil, fmt.Errorf("cannot join the stepds of a step: it has %d nodes, and no node %d", n.nodes, cfg.Self)
	}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.over, n.doneBelow = make(chan struct{}), make(map[int]bool)
	n.gatherings = newGatherings(n)
	n.calls.init(lim)
	for _, c := range n.children() {
		n.down[c] = n.link(c, cfg.Down[c], n.fromBelow)
	}
	if !n.root() {
		n.up = n.link(n.parent(), cfg.Up, n.fromAbove)
	}
	for _, l := range n.links() {
		if l.conn == nil {
			return nil, fmt.Errorf("cannot join the stepds of a step: there is no connection to node %q", cfg.Names[l.peer])
		}
	}
	n.Handle(whoName, n.answerWho)
	for _, l := range n.links() {
		l.start()
	}
	n.wg.Go(n.tick)
	return n, nil
}

func (n *Node) link(peer int, conn net.Conn, handle func(*link, kind, []byte) error) *link {
	return newLink(peer, conn, n.lim.frameMax(), handle, n.linkEnded)
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

// Close leaves the tree. What was sent before is still delivered.
func (n *Node) Close() {
	for _, l := range n.links() {
		l.shut()
	}
	t := time.NewTimer(flushTime)
	defer t.Stop()
	for _, l := range n.links() {
		select {
		case <-l.gone: // the other end has read all and gone as well
		case <-t.C:
			t.Reset(0)
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
