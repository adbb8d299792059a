package stepnet

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"stepd/internal/wire"
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
	// not heard for three of them is lost: 5 s.
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

// Neighbours are the node ids of a node's parent and children, for a fan-out as in Limits.
func Neighbours(self, nodes, fanOut int) (peers []int, err error) {
	t := tree{self, nodes, Limits{FanOut: fanOut}.withDefaults().FanOut}
	if self < 0 || self >= nodes {
		return nil, fmt.Errorf("a step of %d nodes has no node %d", nodes, self)
	}
	if !t.root() {
		peers = append(peers, t.parent())
	}
	return append(peers, t.children()...), nil
}

// tree is the shape: node i is the parent of i*fan+1 to i*fan+fan.
type tree struct{ self, nodes, fan int }

func (t tree) parent() int { return (t.self - 1) / t.fan } // not for the root

func (t tree) root() bool { return t.self == 0 }

func (t tree) children() []int {
	var c []int
	for i := t.self*t.fan + 1; i <= t.self*t.fan+t.fan && i < t.nodes; i++ {
		c = append(c, i)
	}
	return c
}

// towards is the neighbour on the way to another node: a child, or else the
// parent.
func (t tree) towards(to int) int {
	for at := to; at > t.self; at = (at - 1) / t.fan {
		if (at-1)/t.fan == t.self {
			return at
		}
	}
	return t.parent()
}

// below reports whether node is in the subtree of top.
func (t tree) below(node, top int) bool {
	for node > top {
		node = (node - 1) / t.fan
	}
	return node == top
}

// meeting is the lowest node that has all of them below it.
func (t tree) meeting(nodes []int) int {
	top := nodes[0]
	for _, n := range nodes[1:] {
		for top != n {
			if top > n {
				top = (top - 1) / t.fan
			} else {
				n = (n - 1) / t.fan
			}
		}
	}
	return top
}

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

// A frame on the wire is a length (4 bytes, big endian, of what follows), a kind
// (1 byte) and a body, of the fields of package wire. Numbers are 4 bytes.

type kind byte

const (
	kindPing       kind = iota + 1 // nothing else to say
	kindLost                       // to all: node, cause
	kindDone                       // up: all below are done
	kindOver                       // down: so are all
	kindGatherUp                   // name, nodes, problem, entries
	kindGatherDown                 // the same, with all entries
	kindCall                       // to, from, number, name, bytes
	kindReply                      // to, number, problem, bytes
	kindEnd                        // one beyond the last
)

// frame is one as it goes over the wire: the length and the kind in front. It
// is never changed: one frame goes out on many connections.
type frame []byte

const frameHead = 5

// encoder builds a frame.
type encoder struct{ wire.Writer }

func newFrame(k kind, size int) *encoder {
	e := &encoder{wire.Writer{B: make([]byte, frameHead, frameHead+size)}}
	e.B[4] = byte(k)
	return e
}

func (e *encoder) num(v int) *encoder      { e.U32(uint32(v)); return e }
func (e *encoder) str(s string) *encoder   { e.Str(s); return e }
func (e *encoder) bytes(b []byte) *encoder { e.Bytes(b); return e }

func (e *encoder) done() frame {
	binary.BigEndian.PutUint32(e.B, uint32(len(e.B)-4))
	return e.B
}

// errFrame is a frame that no stepd sends.
var errFrame = errors.New("a frame that makes no sense")

// decoder takes a body apart. Bytes share the frame's memory. After the first mistake it
// gives zero values, and end tells.
type decoder struct{ wire.Reader }

func newDecoder(body []byte) decoder { return decoder{wire.Reader{B: body}} }

func (d *decoder) num() int    { return int(int32(d.U32())) }
func (d *decoder) str() string { return string(d.Bytes()) }

// end is an error where the body was too short or too long.
func (d *decoder) end() error {
	if d.Err != nil || len(d.B) != 0 {
		return errFrame
	}
	return nil
}

// readFrame reads one frame of at most limit bytes of body. Its memory grows with
// what has come, not with what is promised.
func readFrame(r io.Reader, limit int) (kind, []byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:])) - 1
	k := kind(head[4])
	if n < 0 || n > limit || k == 0 || k >= kindEnd {
		return 0, nil, fmt.Errorf("%w: kind %d, %d bytes, at most %d", errFrame, k, n, limit)
	}
	const piece = 1 << 20
	body := make([]byte, min(n, piece))
	got := 0
	for {
		m, err := io.ReadFull(r, body[got:])
		got += m
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, nil, err
		}
		if got == n {
			return k, body, nil
		}
		grown := make([]byte, min(n, 2*got))
		copy(grown, body)
		body = grown
	}
}

// part is what some nodes have given to a gathering.
type part struct {
	name, nodes string
	problem     string // why it has failed, "" has not
	entries     []entry
}

type entry struct {
	node int
	data []byte
}

func (p *part) frame(k kind) frame {
	size := 32 + len(p.name) + len(p.nodes) + len(p.problem)
	for _, e := range p.entries {
		size += 8 + len(e.data)
	}
	f := newFrame(k, size).str(p.name).str(p.nodes).str(p.problem).num(len(p.entries))
	for _, e := range p.entries {
		f.num(e.node).bytes(e.data)
	}
	return f.done()
}

func parsePart(body []byte) (*part, error) {
	d := newDecoder(body)
	p := &part{name: d.str(), nodes: d.str(), problem: d.str()}
	n := d.num()
	if n < 0 || n > len(d.B)/8 {
		return nil, errFrame
	}
	for range n {
		p.entries = append(p.entries, entry{d.num(), d.Bytes()})
	}
	return p, d.end()
}

// call is one question, or with reply its answer.
type call struct {
	to, from, number int
	name             string // of a call
	problem          string // of an answer
	data             []byte
}

func (c *call) frame(k kind) frame {
	f := newFrame(k, 32+len(c.name)+len(c.problem)+len(c.data)).num(c.to)
	if k == kindCall {
		return f.num(c.from).num(c.number).str(c.name).bytes(c.data).done()
	}
	return f.num(c.number).str(c.problem).bytes(c.data).done()
}

func parseCall(k kind, body []byte) (*call, error) {
	d := newDecoder(body)
	c := &call{to: d.num()}
	if k == kindCall {
		c.from, c.number, c.name = d.num(), d.num(), d.str()
	} else {
		c.number, c.problem = d.num(), d.str()
	}
	c.data = d.Bytes()
	return c, d.end()
}

func lostFrame(node int, cause string) frame {
	return newFrame(kindLost, 8+len(cause)).num(node).str(cause).done()
}

func parseLost(body []byte) (node int, cause string, err error) {
	d := newDecoder(body)
	node, cause = d.num(), d.str()
	return node, cause, d.end()
}

func plainFrame(k kind) frame { return newFrame(k, 0).done() }
