package peers

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	fields "stepd/internal/wire"
)

// hello is what a child's first mail holds, hidden from all but root.
type hello struct {
	between
	secret secret
	port   uint32
}

func (h *hello) encode() []byte {
	w := fields.Writer{B: h.bytes()}
	w.Bytes(h.secret[:])
	w.U32(h.port)
	return w.B
}

// parseHello reads a hello of the link b.
func parseHello(data []byte, b between) (*hello, error) {
	rest, ours := bytes.CutPrefix(data, b.bytes())
	r := fields.Reader{B: rest}
	h := &hello{between: b}
	secret := r.Bytes()
	copy(h.secret[:], secret)
	h.port = r.U32()
	if !ours || r.Err != nil || len(r.B) > 0 || len(secret) != len(h.secret) || h.port == 0 || h.port > 1<<16-1 {
		return nil, errors.New("a child's first mail holds another link's secret, or none")
	}
	return h, nil
}

const (
	// firstPause is the time before the parent is asked again that has no mailbox yet, half as long
	// again each time up to lastPause: the nodes of a step begin within milliseconds of each other,
	// or a prolog runs on one of them.
	firstPause, lastPause = 10 * time.Millisecond, 2 * time.Second
	// heardPause is the time before a parent is asked again that has the mail: slurmd may have lost
	// it. It doubles each time.
	heardPause = 5 * time.Second
)

// join asks the parent for a link until there is one.
func (g *Group) join() {
	patience := time.NewTimer(g.cfg.Patience)
	defer patience.Stop()
	absent, heard := firstPause, heardPause
	for {
		err := g.sendHello()
		pause := absent
		if err == nil {
			pause, heard = heard, 2*heard
		} else {
			absent = min(absent*3/2, lastPause)
		}
		select {
		case <-g.joined:
			return
		case <-g.ctx.Done():
			return
		case <-time.After(pause):
		case <-patience.C:
			g.mu.Lock()
			given := !g.taken
			g.taken = true // none is taken any more
			g.mu.Unlock()
			if given {
				g.Lose(g.Parent(), absence(g.cfg.Patience, err))
			}
			return
		}
	}
}

// absence says why a node counts as lost that has never come.
func absence(patience time.Duration, err error) string {
	text := fmt.Sprintf("its step daemon has not come within %v", patience)
	if err != nil {
		text += ": " + err.Error()
	}
	return text
}

func (g *Group) sendHello() error {
	h := hello{between: g.between(g.Parent()), secret: g.secret, port: uint32(g.port.Addr().(*net.TCPAddr).Port)}
	token, err := g.cfg.Hide(g.ctx, h.encode())
	if err != nil {
		return err
	}
	return g.mailTo(g.ctx, g.Parent(), &mail{kind: kindHello, data: []byte(token)})
}

// strangersMax bounds connections that have not proven whose they are: the oldest gives way.
const strangersMax = 16

// strangers are those connections. The parent speaks first, and at once: one that is silent is not
// the parent.
type strangers struct {
	mu   sync.Mutex
	list []*net.TCPConn // guarded by mu
}

func (s *strangers) add(conn *net.TCPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.list = append(s.list, conn); len(s.list) > strangersMax {
		s.list[0].Close()
		s.list = s.list[1:]
	}
}

func (s *strangers) remove(conn *net.TCPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(c *net.TCPConn) bool { return c == conn })
}

// accept takes connections until one is the parent's.
func (g *Group) accept() {
	var unknown strangers
	for {
		conn, err := g.port.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			g.refused.note(err)
			time.Sleep(acceptPause)
			continue
		}
		unknown.add(conn)
		g.wg.Go(func() {
			defer unknown.remove(conn)
			g.attach(conn, helloWithin, conn.RemoteAddr().String(), func() { unknown.remove(conn) })
		})
	}
}

// attach makes the link to the parent of a wire, where it is the parent's and the first. known is
// called when the other end has proven that it knows the secret.
func (g *Group) attach(w wire, within time.Duration, from string, known func()) {
	l, err := answer(g.ctx, w, g.between(g.Parent()), &g.secret, within, known, g.takeLink)
	if err == nil {
		g.Attach(g.Parent(), l)
		return
	}
	w.Close()
	switch taken := g.isTaken(); {
	case l != nil: // the link was taken, and is gone
		g.Lose(g.Parent(), err.Error())
	case !taken && g.ctx.Err() == nil:
		g.refused.note(fmt.Errorf("a connection of %s: %w", from, err))
	}
}

// takeLink reports whether a link is the first, and the step's.
func (g *Group) takeLink() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.taken || g.left {
		return false
	}
	g.taken = true
	close(g.joined)
	g.port.Close() // no other node needs it
	return true
}

func (g *Group) isTaken() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.taken
}

// attemptsMax bounds the attempts to reach a child that are under way at a time.
const attemptsMax = 4

// child is a child of this node, as far as the link to it is not made. All is guarded by the
// group's mu.
type child struct {
	// attempts are those under way, by the link's secret: an earlier daemon of a job that was
	// requeued has another, and which one lives is known when it takes the link.
	attempts map[secret]context.CancelFunc
	made     bool
}

// hear takes a child's first mail: it says where to connect, and what proves who one is.
func (g *Group) hear(from int, token []byte) error {
	data, err := g.cfg.Reveal(g.ctx, string(token))
	if err != nil {
		return fmt.Errorf("a child's first mail: %w", err)
	}
	h, err := parseHello(data, g.between(from))
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c := g.children[from]
	if c.made || g.left || c.attempts[h.secret] != nil || len(c.attempts) >= attemptsMax {
		return nil // the child asks again
	}
	ctx, cancel := context.WithCancel(g.ctx)
	c.attempts[h.secret] = cancel
	g.wg.Go(func() {
		l, err := g.reach(ctx, from, h)
		g.reached(from, h, l, err)
		cancel()
	})
	return nil
}

// reached ends an attempt to reach a child.
func (g *Group) reached(from int, h *hello, l *sealed, err error) {
	g.mu.Lock()
	c := g.children[from]
	delete(c.attempts, h.secret)
	first := err == nil && !c.made
	if first {
		c.made = true
		for _, cancel := range c.attempts {
			cancel()
		}
	}
	made := c.made
	g.mu.Unlock()
	switch {
	case first:
		g.Attach(from, l)
	case err == nil:
		l.Close()
	case !made && g.ctx.Err() == nil:
		g.cfg.Log(fmt.Sprintf("cannot reach the step daemon of node %s: %v", g.cfg.Names[from], err))
	}
}

// reach makes the link to a child: by its port, else by mails.
func (g *Group) reach(ctx context.Context, peer int, h *hello) (*sealed, error) {
	l, err := g.connect(ctx, peer, h)
	if err == nil || ctx.Err() != nil {
		return l, err
	}
	g.cfg.Log(fmt.Sprintf("cannot connect to node %s: %v; what the step's nodes have for each other goes by slurmd there, which is slower (PeerPorts in stepd.conf names ports that a firewall has to let through)", g.cfg.Names[peer], err))
	var id [8]byte
	rand.Read(id[:])
	g.mu.Lock()
	c := g.channel(peer, binary.LittleEndian.Uint64(id[:]))
	g.mu.Unlock()
	l, late := greet(ctx, c, h.between, &h.secret, min(channelWithin, g.cfg.Patience))
	if late != nil {
		c.Close()
		return nil, errors.Join(err, fmt.Errorf("nor by slurmd: %w", late))
	}
	return l, nil
}

// connectWithin bounds a connection to a child's port.
const connectWithin = 2 * time.Second

// connect makes the link to a child by its port.
func (g *Group) connect(ctx context.Context, peer int, h *hello) (*sealed, error) {
	host, err := g.cfg.Host(peer)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{Timeout: connectWithin}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(h.port))))
	if err != nil {
		return nil, err
	}
	l, err := greet(ctx, conn.(*net.TCPConn), h.between, &h.secret, helloWithin)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return l, nil
}

// awaitChildren gives up children that do not come.
func (g *Group) awaitChildren() {
	select {
	case <-g.ctx.Done():
		return
	case <-time.After(g.cfg.Patience):
	}
	for _, peer := range g.Unattached() {
		if peer != g.Parent() {
			g.Lose(peer, absence(g.cfg.Patience, nil))
		}
	}
}
