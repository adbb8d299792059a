package stepnet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"stepd/step"
)

// Node is this stepd's place in its step's tree. Make it with New; Finish and then
// Close end it. Its methods may be called from any goroutine.
type Node struct {
	cfg Config
	lim Limits
	tree
	id    tls.Certificate
	up    *link         // to the parent; of node 0, to the launcher
	down  map[int]*link // to the children, by node id
	inUse map[int]bool  // children below which tasks read input

	tap      atomic.Pointer[func(fd, rank int, data []byte)] // of the root
	watching sync.WaitGroup                                  // those who watch

	ctx    context.Context
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup

	hurry sync.Once

	mu   sync.Mutex
	lost *LostError // guarded by mu: the first node without which the tree does not hold
	// without are those without which it does (Layout.NoKill). Guarded by mu.
	without map[int]*LostError
	// unwatched: nobody may begin to watch any more. Guarded by mu.
	unwatched bool
	watchers  int // connections. Guarded by mu.
	life          // guarded by mu

	gatherings
	calls
	outputs
	words
	input
}

// life is how far the step is towards its end.
type life struct {
	ready      bool         // the launcher is there
	launchless bool         // there is no launcher, or not any more
	ended      bool         // our tasks have ended
	done       bool         // and what they wrote was sent
	endedBelow map[int]bool // so have all tasks below these children
	saidDone   map[int]bool // these children have said that all was sent
	doneBelow  map[int]bool // and it was passed on
	toldEnded  bool
	toldDone   bool
	isOver     bool
	over       chan struct{} // closed when the step is over on all nodes
}

var _ step.Peers = (*Node)(nil)

// New joins the tree: it begins to listen and to connect, and returns at once. It
// closes the listener when all who are to come are there.
func New(cfg Config) (*Node, error) {
	if cfg.Layout == nil || cfg.Self < 0 || cfg.Self >= len(cfg.Layout.Nodes) {
		return nil, fmt.Errorf("cannot join the stepds of step %s: no node %d in its layout", cfg.ID, cfg.Self)
	}
	lim := limitsOf(cfg.Limits, cfg.Layout)
	id, err := identity(cfg.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot join the stepds of step %s: %w", cfg.ID, err)
	}
	n := &Node{cfg: cfg, lim: lim, id: id, tree: tree{cfg.Self, len(cfg.Layout.Nodes), lim.FanOut}, down: make(map[int]*link), inUse: make(map[int]bool), without: make(map[int]*LostError)}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.over = make(chan struct{})
	n.endedBelow, n.saidDone, n.doneBelow = make(map[int]bool), make(map[int]bool), make(map[int]bool)
	n.gatherings.init()
	n.calls.init(lim)
	n.outputs.init()
	n.words.init()
	n.input.init()
	upMax := lim.frameMax()
	if n.root() {
		upMax = launcherFrameMax
	}
	n.up = newLink(n.upPeer(), upMax, n.fromAbove, n.linkEnded)
	children := n.children()
	for _, c := range children {
		n.down[c] = newLink(c, lim.frameMax(), n.fromBelow, n.linkEnded)
		n.down[c].lean = len(children) > leanAbove
		n.inUse[c] = slices.ContainsFunc(cfg.InputNodes, func(i int) bool { return n.below(i, c) })
	}
	n.Handle(whoName, n.answerWho)
	n.start()
	return n, nil
}

// launcherFrameMax bounds what the launcher sends: it is a user's program.
const launcherFrameMax = chunk + 64<<10

func (n *Node) upPeer() int {
	if n.root() {
		return launcherID
	}
	return n.parent()
}

// start begins all that the node does by itself.
func (n *Node) start() {
	n.wg.Go(n.listen)
	if !n.root() {
		n.wg.Go(n.join)
	}
	for c, l := range n.down {
		n.relay(c, l)
	}
	n.wg.Go(n.tellRecords)
	n.wg.Go(n.takeInput)
	n.wg.Go(n.tick)
	if n.root() && len(n.cfg.Layout.Launcher) == 0 {
		n.launcherGone("there is none")
		n.launcherReady()
	}
}

// links are all of them.
func (n *Node) links() []*link {
	all := []*link{n.up}
	for _, c := range n.children() {
		all = append(all, n.down[c])
	}
	return all
}

// flood sends a frame to all neighbours but one.
func (n *Node) flood(f frame, but *link) {
	for _, l := range n.links() {
		if l != but && l.peer != launcherID {
			l.push(f)
		}
	}
}

// tick keeps the links alive, and finds those that are not.
func (n *Node) tick() {
	t := time.NewTicker(n.lim.Ping / beatsPerPing)
	defer t.Stop()
	pulses := make(map[*link]*pulse)
	for _, l := range n.links() {
		// The launcher may be stopped (Ctrl-Z): its kernel answers for it.
		if l.peer != launcherID {
			pulses[l] = new(pulse)
		}
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

var errOver = errors.New("the step is over")

// Tell sends words to all other nodes, where Handler.Told hears them.
func (n *Node) Tell(words []byte) error {
	if len(words) > n.lim.Message {
		return fmt.Errorf("cannot tell the step's nodes %d bytes: at most %d", len(words), n.lim.Message)
	}
	n.flood(wordsFrame(kindTold, n.self, words), nil)
	return nil
}

// Close leaves the tree. What was sent before is still delivered.
func (n *Node) Close() {
	n.awaitWatchers()
	for _, l := range n.links() {
		l.shut()
	}
	t := time.NewTimer(flushTime)
	defer t.Stop()
	for _, l := range n.links() {
		if !l.connected() {
			continue
		}
		select {
		case <-l.gone: // the other end has read all and gone as well
		case <-t.C:
			t.Reset(0)
		}
	}
	n.cancel(errOver)
	n.failCalls(errOver)
	n.failGatherings(errOver)
	for _, l := range n.links() {
		l.fail(errOver)
		l.wg.Wait()
	}
	n.closeOutputs()
	n.words.close()
	n.wg.Wait()
}
