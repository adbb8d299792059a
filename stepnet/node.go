package stepnet

import (
	"bufio"
	"context"
	"crypto/sha256"
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

// join connects to the parent.
func (n *Node) join() {
	ctx, cancel := context.WithTimeoutCause(n.ctx, n.lim.Connect, fmt.Errorf("it did not answer within %v", n.lim.Connect))
	defer cancel()
	to := n.cfg.Layout.Nodes[n.parent()]
	m, conn, err := dial(ctx, to.Addr, n.id, to.Key, n.lim.Refused)
	if err == nil {
		err = greet(n.up, m, conn, n.hello(), true, n.lim.Handshake)
	}
	if err != nil {
		n.up.fail(fmt.Errorf("cannot connect to its stepd at %s: %w", to.Addr, err))
	}
}

// hello is ours.
func (n *Node) hello() hello {
	return hello{version: protocol, job: wire(n.cfg.ID.Job), step: wire(n.cfg.ID.Step), from: n.self, fan: n.fan, nodes: n.nodes}
}

// wire is a number as it comes out of a frame.
func wire(v uint32) int { return int(int32(v)) }

// greet exchanges hellos on a new connection of a link and begins to use it. Who
// has dialled speaks first.
func greet(l *link, m *meteredConn, conn *tls.Conn, mine hello, dialled bool, limit time.Duration) (err error) {
	defer func() {
		if err != nil {
			conn.Close()
		}
	}()
	conn.SetDeadline(time.Now().Add(limit))
	r := bufio.NewReaderSize(conn, 16<<10)
	say := func() error { _, err := conn.Write(mine.frame()); return err }
	if dialled {
		err = say()
	}
	if err == nil {
		err = hear(r, mine, l.peer)
	}
	if err == nil && l.connected() {
		err = errSecond
	}
	if err == nil && !dialled {
		err = say()
	}
	if err != nil {
		return err
	}
	conn.SetDeadline(time.Time{})
	return l.attach(conn, r, m)
}

// hear checks the other end's hello.
func hear(r *bufio.Reader, mine hello, peer int) error {
	k, body, err := readFrame(r, 1<<10)
	if err != nil {
		return err
	}
	if k != kindHello {
		return errFrame
	}
	theirs, err := parseHello(body)
	if err != nil {
		return err
	}
	want := mine
	want.from = peer
	if theirs != want {
		return fmt.Errorf("it is of another step or tree: %+v, not %+v", theirs, want)
	}
	return nil
}

// expected are those who may come in, by their keys.
func (n *Node) expected() map[[sha256.Size]byte]*link {
	who := make(map[[sha256.Size]byte]*link)
	add := func(key []byte, l *link) {
		if len(key) == sha256.Size {
			who[[sha256.Size]byte(key)] = l
		}
	}
	for c, l := range n.down {
		add(n.cfg.Layout.Nodes[c].Key, l)
	}
	if n.root() {
		add(n.cfg.Layout.Launcher, n.up)
	}
	return who
}

// listen lets in those who prove a key that is expected, until all are there.
func (n *Node) listen() {
	ln := n.cfg.Listener
	if ln == nil {
		return
	}
	defer ln.Close()
	who := n.expected()
	watcher, open := n.watcherKey()
	if len(who) == 0 && !open {
		return
	}
	all, stop := context.WithCancel(n.ctx)
	defer stop()
	unhook := context.AfterFunc(all, func() { ln.Close() })
	defer unhook()
	n.wg.Go(func() {
		n.awaitAll(all, who)
		if !open {
			stop()
		}
	})
	conf := pinned(n.id, func(h [sha256.Size]byte) bool { return who[h] != nil || open && h == watcher })
	strangers := newStrangers(n.log)
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		raw, err := ln.Accept()
		if err != nil {
			if all.Err() != nil {
				return
			}
			// No descriptor is left: nothing tells when one is.
			select {
			case <-time.After(dialPause):
				continue
			case <-all.Done():
				return
			}
		}
		m := &meteredConn{Conn: raw}
		strangers.add(m, n.lim.Silence)
		wg.Go(func() {
			err := n.admit(m, tls.Server(m, conf), who)
			strangers.known(m)
			if err != nil && n.ctx.Err() == nil {
				strangers.refused(raw, err)
			}
		})
	}
}

// admit is the handshake of one who came in.
func (n *Node) admit(m *meteredConn, conn *tls.Conn, who map[[sha256.Size]byte]*link) error {
	ctx, cancel := context.WithTimeout(n.ctx, n.lim.Handshake)
	defer cancel()
	if err := conn.HandshakeContext(ctx); err != nil {
		conn.Close()
		return err
	}
	hash, err := peerHash(conn.ConnectionState())
	l := who[hash]
	if watcher, open := n.watcherKey(); err == nil && l == nil && open && hash == watcher {
		return n.watched(m.Conn, conn)
	}
	if err != nil || l == nil {
		conn.Close()
		return errKey
	}
	if err := greet(l, m, conn, n.hello(), false, n.lim.Handshake); err != nil {
		return err
	}
	if l.peer == launcherID {
		watchKernel(m.Conn)
		n.launcherReady()
	}
	return nil
}

// awaitAll loses those who do not come, and returns when there is nobody left to wait for.
func (n *Node) awaitAll(ctx context.Context, who map[[sha256.Size]byte]*link) {
	var wg sync.WaitGroup
	for _, l := range who {
		limit := n.lim.Connect
		if l.peer == launcherID {
			limit = n.lim.Launcher
		}
		wg.Go(func() {
			t := time.NewTimer(limit)
			defer t.Stop()
			select {
			case <-l.attached:
			case <-l.gone:
			case <-ctx.Done():
			case <-t.C:
				l.fail(fmt.Errorf("it did not connect within %v", limit))
			}
		})
	}
	wg.Wait()
}

// log writes a line for the administrator.
func (n *Node) log(format string, args ...any) {
	if n.cfg.Log != nil {
		n.cfg.Log(fmt.Sprintf(format, args...))
	}
}

// linkEnded is told of a link that is gone.
func (n *Node) linkEnded(l *link, err error) {
	if n.ctx.Err() != nil {
		return
	}
	n.mu.Lock()
	fine := n.isOver
	switch {
	case l.peer == launcherID:
	case l == n.up:
		fine = fine || n.toldDone // it has ended, or is lost: our part was done
	default:
		fine = fine || n.saidDone[l.peer]
		n.endedBelow[l.peer] = true
	}
	n.mu.Unlock()
	switch {
	case l.peer == launcherID:
		n.launcherGone(err.Error())
	case !fine:
		n.lose(l.peer, err.Error(), nil)
	}
	if l == n.up {
		n.closeOutputs() // nobody will read
	}
	n.advance()
}

// lose notes that a node is lost, once, and tells everybody but the neighbour
// that told it.
//
// Where the step goes on without its lost nodes (Layout.NoKill), that is so for each;
// node 0's loss is that of all others, who are heard by way of it.
func (n *Node) lose(node int, cause string, from *link) {
	err := &LostError{Node: node, Name: nodeName(n.cfg.Layout, node), Cause: cause}
	apart := n.cfg.Layout.NoKill && node != 0
	n.mu.Lock()
	if n.lost != nil || n.isOver || n.without[node] != nil {
		n.mu.Unlock()
		return
	}
	if apart {
		n.without[node] = err
	} else {
		n.lost = err
	}
	n.mu.Unlock()
	if apart {
		n.failGatheringsOf(err)
		n.failCallsTo(err)
	} else {
		n.failGatherings(err)
		n.failCalls(err)
	}
	n.flood(wordsFrame(kindLost, node, []byte(cause)), from)
	n.cfg.Handler.NodeLost(err)
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

// lostOf is why what these nodes have to do together does not come about, nil where
// none of them is lost.
func (n *Node) lostOf(nodes ...int) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.without) == 0 {
		return nil
	}
	for _, i := range nodes {
		if err := n.without[i]; err != nil {
			return err
		}
	}
	return nil
}

// lostSome tells whether any node is lost.
func (n *Node) lostSome() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.lost != nil || len(n.without) > 0
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
