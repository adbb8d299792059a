package node

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"

	"stepd/api"
	"stepd/step"
)

// Cluster is what a node knows of the others, and how it speaks with them.
type Cluster struct {
	// Nodes are all nodes of slurm.conf in its order, this one among them.
	Nodes []ClusterNode
	// Partition are the names of those of this node's partition, in the same order.
	Partition []string
	// List writes names as a list of hosts: "n[1-3]".
	List func(names []string) string
	// Expand reads what List has written.
	Expand func(list string) []string
	// TLS proves names to both sides. nil: no other node is served or asked.
	TLS *api.PeerTLS
	// ListenAddress is an IP address, "" every one. Addr is this node's own as the
	// stepds of other nodes connect to it: NodeAddr.
	ListenAddress, Addr string
	// StepPorts are the first and the last port for stepds; zero is any.
	StepPorts [2]int
	// KeepaliveTime, KeepaliveTimeout and NodeTimeout are those of stepd.conf.
	KeepaliveTime, KeepaliveTimeout, NodeTimeout time.Duration
	// Net is what the steps' stepds are told.
	Net step.NetConf
}

// ClusterNode is one node of slurm.conf.
type ClusterNode struct {
	Name string
	Addr string // host:port of its noded
}

// find returns the node of that name.
func (c *Cluster) find(name string) (ClusterNode, bool) {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n, true
		}
	}
	return ClusterNode{}, false
}

// peers are the connections to other nodeds: each is made when it is needed first
// and kept.
type peers struct {
	cfg *Cluster

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // guarded by mu: by node
}

// client returns the service of the node. It does not connect: a node that is not
// there shows in the call.
func (p *peers) client(name string) (api.PeerClient, error) {
	node, ok := p.cfg.find(name)
	switch {
	case p.cfg.TLS == nil:
		return nil, fmt.Errorf("cannot ask node %q: there is no certificate here (TLSCertificate, TLSKey and TLSCA of stepd.conf)", name)
	case !ok:
		return nil, fmt.Errorf("cannot ask node %q: slurm.conf has no such NodeName", name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if cc := p.conns[name]; cc != nil {
		return api.NewPeerClient(cc), nil
	}
	cc, err := grpc.NewClient("passthrough:///"+node.Addr,
		grpc.WithTransportCredentials(p.cfg.TLS.Client(name)), grpc.WithAuthority(name),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(api.ReplyMax), grpc.MaxCallSendMsgSize(fanMax)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
			MinConnectTimeout: p.cfg.KeepaliveTimeout,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: p.cfg.KeepaliveTime, Timeout: p.cfg.KeepaliveTimeout}),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot ask node %q: %w", name, err)
	}
	p.conns[name] = cc
	return api.NewPeerClient(cc), nil
}

// failed forgets a connection that does not come about: the next call tries anew,
// at once, and nobody knocks at the node's door meanwhile.
func (p *peers) failed(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if cc := p.conns[name]; cc != nil && cc.GetState() == connectivity.TransientFailure {
		delete(p.conns, name)
		cc.Close()
	}
}

func (p *peers) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cc := range p.conns {
		cc.Close()
	}
	p.conns = nil
}

// ListenPeers binds the port at which other nodeds are served. It returns nil
// where there is no certificate: then nobody is.
func (n *Node) ListenPeers(ctx context.Context) (net.Listener, error) {
	c := n.cfg.Others
	if c == nil || c.TLS == nil {
		return nil, nil
	}
	self, _ := c.find(n.cfg.NodeName)
	_, port, err := net.SplitHostPort(self.Addr)
	if err != nil {
		return nil, fmt.Errorf("cannot serve other nodes: %w", err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(c.ListenAddress, port))
	if err != nil {
		return nil, fmt.Errorf("cannot serve other nodes at port %s (Port of the NodeName, else SlurmdPort): %w", port, err)
	}
	return l, nil
}

// PeerServer returns the service for other nodeds, for Serve on the listener of
// ListenPeers.
func (n *Node) PeerServer() *grpc.Server {
	c := n.cfg.Others
	s := grpc.NewServer(
		grpc.UnaryInterceptor(n.surviveUnary), grpc.StreamInterceptor(n.surviveStream),
		grpc.Creds(c.TLS.Server()),
		grpc.MaxRecvMsgSize(fanMax),
		grpc.MaxConcurrentStreams(10_000), // a call for each part of a step that its head waits for
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: time.Hour, Time: c.KeepaliveTime, Timeout: c.KeepaliveTimeout}),
		// Others may ask more often than this node does.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 500 * time.Millisecond, PermitWithoutStream: true}),
	)
	api.RegisterPeerServer(s, &peerService{n: n})
	return s
}

// listenStep binds the port of a stepd, and tells the address for the others.
func (c *Cluster) listenStep(ctx context.Context) (l *net.TCPListener, addr string, err error) {
	host, err := c.stepHost(ctx)
	if err != nil {
		return nil, "", err
	}
	first, last := c.StepPorts[0], c.StepPorts[1]
	var lc net.ListenConfig
	for port := first; port <= last; port++ {
		var any net.Listener
		if any, err = lc.Listen(ctx, "tcp", net.JoinHostPort(c.ListenAddress, strconv.Itoa(port))); err != nil {
			continue
		}
		l = any.(*net.TCPListener)
		return l, net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port)), nil
	}
	return nil, "", fmt.Errorf("cannot listen for the step's other nodes at a port from %d to %d (StepPorts): %w", first, last, err)
}

// stepHost is the IP address of this node for others: NodeAddr. What a name
// stands for here may be the loopback's, which is nobody else's.
func (c *Cluster) stepHost(ctx context.Context) (string, error) {
	if ip := net.ParseIP(c.Addr); ip != nil {
		return c.Addr, nil
	}
	if c.ListenAddress != "" {
		if ip := net.ParseIP(c.ListenAddress); ip != nil && !ip.IsUnspecified() {
			return c.ListenAddress, nil
		}
	}
	addrs, err := net.DefaultResolver.LookupHost(ctx, c.Addr)
	if err != nil {
		return "", fmt.Errorf("cannot tell this node's address (NodeAddr=%s): %w", c.Addr, err)
	}
	for _, a := range addrs {
		if ip := net.ParseIP(a); ip != nil && !ip.IsLoopback() {
			return a, nil
		}
	}
	return addrs[0], nil
}
