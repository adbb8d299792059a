package serve

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
)

// toldMax is how many connections beyond a user's limit are served, to be told so; any
// more are closed without a word.
const toldMax = 16

// counter counts what each user has, and bounds it for all but root.
type counter struct {
	most int

	mu     sync.Mutex
	byUser map[uint32]int // guarded by mu
}

// add counts n more of uid, and returns how many there are then. It counts none, and returns
// false, where a user other than root would have more than most.
func (c *counter) add(uid uint32, n, most int) (have int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have = c.byUser[uid] + n
	if uid != 0 && have > most {
		return have, false
	}
	c.byUser[uid] = have
	return have, true
}

func (c *counter) drop(uid uint32, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byUser[uid] -= n; c.byUser[uid] <= 0 {
		delete(c.byUser, uid)
	}
}

func (c *counter) total() (all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.byUser {
		all += n
	}
	return all
}

// clients counts the connections to noded's socket, and what comes and goes by them.
type clients struct {
	open     counter
	inFlight inFlight
}

func newClients(connections, requestBytes int) *clients {
	return &clients{
		open:     counter{most: connections, byUser: make(map[uint32]int)},
		inFlight: inFlight{counter{most: requestBytes, byUser: make(map[uint32]int)}, make(map[uint32]*turns)},
	}
}

// enter counts a connection of uid. refusal is the answer to its requests, and the error
// that it is to be closed.
func (c *clients) enter(uid uint32) (refusal string, err error) {
	have, ok := c.open.add(uid, 1, c.open.most+toldMax)
	if uid != 0 && have > c.open.most {
		refusal = fmt.Sprintf("uid %d has %d connections to noded, the limit (UserConnectionsMax)", uid, c.open.most)
	}
	if !ok {
		return "", fmt.Errorf("cannot serve another client: %s", refusal)
	}
	return refusal, nil
}

// clientListener accepts the connections that their users may have.
type clientListener struct {
	net.Listener
	s *Server
}

// Accept returns the next connection, a *clientConn.
func (l *clientListener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &clientConn{UnixConn: accepted.(*net.UnixConn)}
		if c.peer, err = l.s.PeerOf(c.UnixConn); err == nil {
			c.refusal, err = l.s.clients.enter(c.peer.UID)
		}
		if err != nil {
			l.s.logRefused(c.peer.UID, "connection closed: %v", err)
			c.peer.Close()
			c.UnixConn.Close()
			continue
		}
		c.leave = sync.OnceFunc(func() {
			l.s.clients.open.drop(c.peer.UID, 1)
			c.peer.Close()
		})
		return c, nil
	}
}

// peerKey is the context key of a connection's *clientConn.
type peerKey struct{}

// clientConn is a client's connection, counted until it is closed.
type clientConn struct {
	*net.UnixConn
	peer    api.Peer
	refusal string // the answer to its requests, "" where they are served
	leave   func()
}

// Close closes the connection.
func (c *clientConn) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}

// whileConnected returns a context that ends with ctx, or when the client has closed its
// connection, and a function that ends the watch. net/http reports the close as well, but only
// while nothing that the client has sent behind its request lies unread. Without a connection
// in ctx, or a descriptor for the watch, it returns ctx.
func whileConnected(ctx context.Context) (connected context.Context, stop func()) {
	c, ok := ctx.Value(peerKey{}).(*clientConn)
	if !ok {
		return ctx, func() {}
	}
	f, err := c.File() // of its own in the poller, which reports each change to it as well
	if err != nil {
		return ctx, func() {}
	}
	raw, err := f.SyscallConn()
	if err != nil {
		f.Close()
		return ctx, func() {}
	}
	connected, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if raw.Read(hungUp) == nil {
			cancel()
		}
	}()
	return connected, func() {
		_ = f.SetReadDeadline(time.Unix(0, 1)) // a socket has deadlines
		<-watched
		f.Close()
		cancel()
	}
}

// hungUp reports whether the other end of a stream socket sends no more.
func hungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// inFlight counts the bytes of the requests and replies that are under way: a request from its
// first byte to its answer, a reply until it is written.
type inFlight struct {
	counter
	turns map[uint32]*turns // guarded by mu
}

// turns is the order in which the requests of one user make documents.
type turns struct {
	sync.Mutex
	waiting int // guarded by inFlight.mu: requests that have or want it
}

// turn returns when no other request of uid makes a document: what is not counted yet is
// one document of each user. The caller ends its turn by the function.
func (f *inFlight) turn(uid uint32) (done func()) {
	f.mu.Lock()
	t := f.turns[uid]
	if t == nil {
		t = new(turns)
		f.turns[uid] = t
	}
	t.waiting++
	f.mu.Unlock()
	t.Lock()
	return func() {
		t.Unlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		if t.waiting--; t.waiting == 0 {
			delete(f.turns, uid)
		}
	}
}
