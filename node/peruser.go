package node

import (
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"

	"stepd/api"
)

// PerUser bounds what one user other than root may have of a node at a time.
type PerUser struct {
	// Steps are those that have not ended, and reservations and allocations: each costs
	// two processes of root's; also steps that wait for their share of a job. 0 is 1000.
	Steps int
	// Connections are those to noded's socket. 0 is 2048: one for each step that a
	// client waits for, and others.
	Connections int
	// RequestBytes are those of calls that are under way, from the first byte that comes
	// to the answer, at least callBytes for each, but for inFlightFree of each connection;
	// as many again are those of requests that wait for their share of
	// a job, or for their launch, and of batch jobs. 0 is 64 MiB.
	RequestBytes int
	// ReplayBytes are what the stepds of the user's steps may keep of output, in all. 0
	// is 256 MiB.
	ReplayBytes int64
}

func defaultPerUser() PerUser {
	return PerUser{Steps: 1000, Connections: 2048, RequestBytes: 64 << 20, ReplayBytes: 256 << 20}
}

func (p *PerUser) complete() {
	d := defaultPerUser()
	setDefault(&p.Steps, d.Steps)
	setDefault(&p.Connections, d.Connections)
	setDefault(&p.RequestBytes, d.RequestBytes)
	setDefault(&p.ReplayBytes, d.ReplayBytes)
}

// keepReplay is how much of want a step of uid may keep of its output.
func (r *registry) keepReplay(uid uint32, want int64) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if uid != 0 {
		want = max(0, min(want, r.perUser.ReplayBytes-r.replay[uid]))
	}
	r.replay[uid] += want
	return want
}

// dropReplay undoes keepReplay. r.mu is held.
func (r *registry) dropReplay(uid uint32, bytes int64) {
	if r.replay[uid] -= bytes; r.replay[uid] <= 0 {
		delete(r.replay, uid)
	}
}

// toldMax is how many connections beyond a user's limit are there to be told so; any
// more are closed without a word.
const toldMax = 16

// clients counts the connections to noded's socket, and what comes by them.
type clients struct {
	most int

	inFlight inFlight

	mu     sync.Mutex
	byUser map[uint32]int // guarded by mu
}

func newClients(p PerUser) *clients {
	return &clients{
		most: p.Connections, byUser: make(map[uint32]int),
		inFlight: inFlight{most: p.RequestBytes, byUser: make(map[uint32]int)},
	}
}

func (c *clients) count() (all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.byUser {
		all += n
	}
	return all
}

// enter counts a connection of uid. refusal is what its calls are answered, and the
// error that it is not to be there at all.
func (c *clients) enter(uid uint32) (refusal string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	have := c.byUser[uid]
	if uid != 0 && have >= c.most {
		refusal = fmt.Sprintf("uid %d has %d connections to noded, the limit (UserConnectionsMax)", uid, c.most)
		if have >= c.most+toldMax {
			return "", fmt.Errorf("cannot serve another client: %s", refusal)
		}
	}
	c.byUser[uid]++
	return refusal, nil
}

func (c *clients) leave(uid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byUser[uid]--; c.byUser[uid] <= 0 {
		delete(c.byUser, uid)
	}
}

// clientCredentials are api.Credentials that count who is there.
type clientCredentials struct {
	credentials.TransportCredentials
	clients *clients
}

// ServerHandshake asks the kernel who has connected, and counts the connection until
// it is closed.
func (c clientCredentials) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ServerHandshake(conn)
	if err != nil {
		return nil, nil, err
	}
	p, ok := info.(api.Peer)
	if !ok {
		return nil, nil, fmt.Errorf("internal error: credentials of type %T", info)
	}
	if p.Refusal, err = c.clients.enter(p.UID); err != nil {
		conn.Close() // gRPC closes the plain connection, not what holds the peer's process
		return nil, nil, err
	}
	if p.UID != 0 {
		conn = newRequestConn(conn, p.UID, &c.clients.inFlight)
	}
	return &countedConn{Conn: conn, leave: sync.OnceFunc(func() { c.clients.leave(p.UID) })}, p, nil
}

// Clone is credentials.TransportCredentials'.
func (c clientCredentials) Clone() credentials.TransportCredentials {
	return clientCredentials{c.TransportCredentials.Clone(), c.clients}
}

// countedConn counts until it is closed.
type countedConn struct {
	net.Conn
	leave func()
}

// Close closes the connection.
func (c *countedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
