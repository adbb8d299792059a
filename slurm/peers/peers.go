// Package peers joins the step daemons of a step of several nodes, where nothing but Slurm's own
// daemons knows them all: as a tree by node id, whose links package stepnet uses.
//
// A daemon opens a mailbox, a unix socket in slurmd's spool, and a port. It sends its parent a mail
// by REQUEST_FORWARD_DATA, which slurmd on the other node brings as the sender that munge proves:
// a secret, for root alone (munge), and its port. The parent connects to that, and both prove that
// they know the secret. From then on they need slurmd no more. Where the port cannot be reached, a
// channel of mails carries the same records, more slowly.
//
// A parent that has not come yet is asked again; a node that never comes, or whose daemon has
// left, is lost to the tree. Nothing waits for the links but who uses them: what is sent before
// waits in package stepnet.
//
// Begin with New; Finish and Close end a Group. The first words on a link are in greet.go, its
// records in seal.go, the mails in mail.go and channel.go.
package peers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"stepd/step/launch"
	"stepd/stepnet"
)

// Config is what a step daemon must know of the others.
type Config struct {
	Job, Step uint32
	// Names are the step's nodes by node id, Self is this one's id.
	Names []string
	Self  int
	// Mailbox is the path of this node's mailbox, and Deliver brings bytes into another node's.
	// Deliver returns nil when they have arrived.
	Mailbox string
	Deliver func(ctx context.Context, node int, data []byte) error
	// Host is where another node's ports are, a name or an address.
	Host func(node int) (string, error)
	// Ports are the first and the last port to listen at; 0 are any.
	Ports [2]uint16
	// Hide makes a token of data that root alone can reveal, on every node of the cluster. Reveal
	// returns a token's data, and an error of one that is not root's.
	Hide   func(ctx context.Context, data []byte) (token string, err error)
	Reveal func(ctx context.Context, token string) (data []byte, err error)
	// Lost is called once when a node of the step is lost. It must not wait, and may be nil.
	Lost func(err *stepnet.LostError)
	// Log takes a line of the administrator's. Any goroutine calls it.
	Log func(line string)
	// Patience is how long a node may take to come: 5 min.
	Patience time.Duration
	Limits   stepnet.Limits
}

// patienceDefault is Config.Patience's.
const patienceDefault = 5 * time.Minute

// Group is this node's place among the step's. Its methods may be called from any goroutine.
type Group struct {
	*stepnet.Node
	cfg     Config
	secret  secret // of the link to the parent
	box     *mailbox
	port    *net.TCPListener // nil of node 0
	ctx     context.Context
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	refused refused

	mu       sync.Mutex
	joined   chan struct{}       // closed when the link to the parent is made
	taken    bool                // guarded by mu: joined is closed
	children map[int]*child      // guarded by mu: by node id, all of them
	channels map[uint64]*channel // guarded by mu
	left     bool                // guarded by mu: Close has begun
}

var _ launch.Peers = (*Group)(nil)

// New opens this node's mailbox and begins to join the others, beside its caller. The caller
// closes the Group.
func New(cfg Config) (_ *Group, err error) {
	if cfg.Patience == 0 {
		cfg.Patience = patienceDefault
	}
	g := &Group{cfg: cfg, joined: make(chan struct{}), children: make(map[int]*child), channels: make(map[uint64]*channel)}
	g.refused.log = cfg.Log
	rand.Read(g.secret[:])
	if g.Node, err = stepnet.New(stepnet.Config{Names: cfg.Names, Self: cfg.Self, Lost: cfg.Lost, Log: cfg.Log, Limits: cfg.Limits}); err != nil {
		return nil, err
	}
	if g.box, err = openMailbox(cfg.Mailbox); err != nil {
		return nil, fmt.Errorf("cannot join the step daemons of the step's other nodes: %w", err)
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	for _, c := range g.Children() {
		g.children[c] = &child{attempts: make(map[secret]context.CancelFunc)}
	}
	if g.Parent() >= 0 {
		if g.port, err = listen(cfg.Ports); err != nil {
			g.box.close()
			return nil, err
		}
		g.wg.Go(g.accept)
		g.wg.Go(g.join)
	}
	g.box.serve(g.take, func(err error) { g.refused.note(err) })
	if len(g.children) > 0 {
		g.wg.Go(g.awaitChildren)
	}
	return g, nil
}

// listen opens a port: one of a range, so that a firewall can let it through, or any. A step that
// is tried first begins anywhere in the range: its neighbours are taken by other steps.
func listen(ports [2]uint16) (*net.TCPListener, error) {
	first, n := int(ports[0]), int(ports[1])-int(ports[0])+1
	if first == 0 {
		n = 1
	}
	var random [2]byte
	rand.Read(random[:])
	from := int(random[0])<<8 | int(random[1])
	var err error
	for i := range n {
		port := first
		if first > 0 {
			port += (from + i) % n
		}
		var l *net.TCPListener
		if l, err = net.ListenTCP("tcp", &net.TCPAddr{Port: port}); err == nil {
			return l, nil
		}
	}
	return nil, fmt.Errorf("cannot open a port for the step's other nodes: %w (PeerPorts=%d-%d in stepd.conf)", err, ports[0], ports[1])
}

// between names the link to a neighbour.
func (g *Group) between(peer int) between {
	b := between{job: g.cfg.Job, step: g.cfg.Step, parent: uint32(g.cfg.Self), child: uint32(peer)}
	if peer < g.cfg.Self {
		b.parent, b.child = b.child, b.parent
	}
	return b
}

// mailTo sends a mail to a neighbour.
func (g *Group) mailTo(ctx context.Context, peer int, m *mail) error {
	m.job, m.step, m.from, m.to = g.cfg.Job, g.cfg.Step, uint32(g.cfg.Self), uint32(peer)
	return g.cfg.Deliver(ctx, peer, m.encode())
}

// take takes a mail.
func (g *Group) take(m *mail) {
	from := int(m.from)
	_, isChild := g.children[from] // the keys stay
	var err error
	switch {
	case m.job != g.cfg.Job || m.step != g.cfg.Step:
		err = fmt.Errorf("a mail is of step %d.%d", m.job, m.step)
	case int(m.to) != g.cfg.Self || !isChild && from != g.Parent():
		err = fmt.Errorf("a mail is from node %d to node %d of the step", m.from, m.to)
	case m.kind == kindHello && isChild:
		err = g.hear(from, m.data)
	case m.kind == kindGone:
		g.Lose(from, "it has left: "+string(m.data[:min(len(m.data), causeMax)]))
	case m.kind == kindHello:
		err = errors.New("the parent greets as a child")
	default:
		err = g.pass(from, m)
	}
	if err != nil {
		g.refused.note(err)
	}
}

// causeMax bounds why a node has left.
const causeMax = 512

// pass hands a mail to its channel. The parent begins one by its first piece.
func (g *Group) pass(from int, m *mail) error {
	g.mu.Lock()
	c := g.channels[m.channel]
	if c == nil && from == g.Parent() && m.kind == kindData && m.number == 0 && !g.left {
		if g.taken {
			g.mu.Unlock()
			return nil // it has given up too early, or its mail is late
		}
		c = g.channel(from, m.channel)
		g.wg.Go(func() { g.attach(c, min(channelWithin, g.cfg.Patience), "slurmd", func() {}) })
	}
	g.mu.Unlock()
	if c == nil {
		return errors.New("a mail is of no channel")
	}
	return c.take(m)
}

// channel makes a channel to a neighbour. The caller holds mu.
func (g *Group) channel(peer int, id uint64) *channel {
	c := newChannel(g.ctx, id, func(ctx context.Context, m *mail) error { return g.mailTo(ctx, peer, m) })
	g.channels[id] = c
	return c
}

// Close leaves the tree. What was sent before is still delivered, until ctx ends. Neighbours
// without a link learn why this node has left, unless the step is over.
func (g *Group) Close(ctx context.Context, why string) {
	g.mu.Lock()
	g.left = true
	g.mu.Unlock()
	var wg sync.WaitGroup
	if !g.Over() {
		for _, peer := range g.Unattached() {
			wg.Go(func() {
				// A node without a daemon needs no word.
				_ = g.mailTo(ctx, peer, &mail{kind: kindGone, data: []byte(why)})
			})
		}
	}
	g.Node.Close(ctx)
	wg.Wait()
	g.cancel()
	if g.port != nil {
		g.port.Close()
	}
	g.box.close()
	g.wg.Wait()
	g.refused.close()
}

// refused counts what was refused, and has a line for the first and one for all.
type refused struct {
	log func(string)

	mu    sync.Mutex
	count int // guarded by mu
}

func (r *refused) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count++; r.count == 1 {
		r.log("refused what is not of the step's other nodes: " + err.Error() + "; more of it is only counted")
	}
}

func (r *refused) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count > 1 {
		r.log("refused " + strconv.Itoa(r.count) + " mails and connections that are not of the step's other nodes")
	}
}
