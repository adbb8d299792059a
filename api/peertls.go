package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// PeerTLS is how a noded proves to others which node it is, and knows them by
// their certificates: TLS 1.3 alone, both ends verified against one CA. The files
// are read for each connection, so that new ones need no restart.
type PeerTLS struct {
	// Certificate, Key and CA are PEM files.
	Certificate, Key, CA string
	// Node is this node's NodeName, which its certificate must have as a DNS name.
	Node string
	// Known tells whether a name is a NodeName of slurm.conf.
	Known func(name string) bool
	// Refused is told of peers that were not let in, by address; nil is nobody.
	Refused func(addr string, err error)
}

// NodePeer is another node's noded at the other end of a connection: its name
// was proved by its certificate.
type NodePeer struct {
	credentials.CommonAuthInfo
	Name string
}

// AuthType names the mechanism, as gRPC wants.
func (NodePeer) AuthType() string { return "node certificate" }

// NodePeerOf returns the node that has called the method of ctx. It fails where
// the server was not made with PeerTLS: nobody is ever assumed.
func NodePeerOf(ctx context.Context) (NodePeer, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return NodePeer{}, errors.New("internal error: call without a peer")
	}
	node, ok := p.AuthInfo.(NodePeer)
	if !ok {
		return NodePeer{}, errors.New("internal error: connection without a node's certificate")
	}
	return node, nil
}

// Check reads the files and tells what is wrong with them. expired is when the
// certificate's time is over, or has not come: others refuse it then, which is no
// reason for a node not to start.
func (p *PeerTLS) Check() (expired, err error) {
	cert, pool, err := p.load()
	if err != nil {
		return nil, err
	}
	leaf := cert.Leaf
	if !hasName(leaf, p.Node) {
		return nil, fmt.Errorf("cannot use certificate %q: it is for %s, and this node is %q", p.Certificate, namesOf(leaf), p.Node)
	}
	_, err = leaf.Verify(x509.VerifyOptions{
		Roots: pool, Intermediates: chainPool(cert), CurrentTime: leaf.NotBefore.Add(time.Second),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot use certificate %q: %q does not vouch for it: %w", p.Certificate, p.CA, err)
	}
	if now := time.Now(); now.After(leaf.NotAfter) || now.Before(leaf.NotBefore) {
		return fmt.Errorf("certificate %q is valid from %s to %s, and it is %s: other nodes refuse it",
			p.Certificate, leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339), now.Format(time.RFC3339)), nil
	}
	return nil, nil
}

func chainPool(cert *tls.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			pool.AddCert(c)
		}
	}
	return pool
}

// load reads the three files.
func (p *PeerTLS) load() (*tls.Certificate, *x509.CertPool, error) {
	certPEM, err := readOwned(p.Certificate, 0o022)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use certificate: %w", err)
	}
	keyPEM, err := readOwned(p.Key, 0o077)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use TLS key: %w", err)
	}
	caPEM, err := readOwned(p.CA, 0o022)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use CA: %w", err)
	}
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot use certificate %q with key %q: %w", p.Certificate, p.Key, err)
	}
	if cert.Leaf == nil {
		if cert.Leaf, err = x509.ParseCertificate(cert.Certificate[0]); err != nil {
			return nil, nil, fmt.Errorf("cannot use certificate %q: %w", p.Certificate, err)
		}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(caPEM) {
		if block, _ := pem.Decode(caPEM); block == nil {
			return nil, nil, fmt.Errorf("cannot use CA %q: it is no PEM file", p.CA)
		}
		return nil, nil, fmt.Errorf("cannot use CA %q: there is no certificate in it", p.CA)
	}
	return &cert, pool, nil
}

// pemMax bounds a file of certificates, in bytes.
const pemMax = 1 << 20

// readOwned reads a file that is the process's user's own and that others may
// not do with what the bits of mode say.
func readOwned(path string, forbidden uint32) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, fmt.Errorf("%q: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%q: not a regular file", path)
	case int(st.Uid) != os.Geteuid():
		return nil, fmt.Errorf("%[1]q: it belongs to uid %[2]d, not to %[3]d: chown %[3]d %[1]s", path, st.Uid, os.Geteuid())
	case st.Mode&forbidden != 0:
		what, remedy := "write", "chmod go-w"
		if forbidden&0o044 != 0 {
			what, remedy = "read or write", "chmod 600"
		}
		return nil, fmt.Errorf("%[1]q: others may %[2]s it (mode %#[3]o): %[4]s %[1]s", path, what, st.Mode&0o7777, remedy)
	}
	b, err := io.ReadAll(io.LimitReader(f, pemMax+1))
	if err == nil && len(b) > pemMax {
		err = fmt.Errorf("%q: longer than %d bytes", path, pemMax)
	}
	return b, err
}

func hasName(c *x509.Certificate, name string) bool {
	for _, n := range c.DNSNames {
		if n == name {
			return true
		}
	}
	return false
}

func namesOf(c *x509.Certificate) string {
	if len(c.DNSNames) == 0 {
		return "no DNS name"
	}
	return fmt.Sprintf("%.200q", c.DNSNames)
}

// config is for one connection.
func (p *PeerTLS) config() (*tls.Config, error) {
	cert, pool, err := p.load()
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"},
		Certificates: []tls.Certificate{*cert}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert,
		// A session that is taken up again would not look at the files.
		SessionTicketsDisabled: true,
	}, nil
}

// Server returns the credentials of the side that is connected to.
func (p *PeerTLS) Server() credentials.TransportCredentials { return nodeCredentials{tls: p} }

// Client returns the credentials for connections to one node.
func (p *PeerTLS) Client(node string) credentials.TransportCredentials {
	return nodeCredentials{tls: p, node: node}
}

// nodeCredentials are a PeerTLS for gRPC. node is whom a client wants to meet.
type nodeCredentials struct {
	tls  *PeerTLS
	node string
}

// ServerHandshake meets a client, whose certificate must name a node of the site.
func (c nodeCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, name, err := c.meet(raw)
	if err != nil {
		if c.tls.Refused != nil && !errors.Is(err, io.EOF) {
			c.tls.Refused(raw.RemoteAddr().String(), err)
		}
		return nil, nil, err
	}
	return conn, nodePeer(name), nil
}

func (c nodeCredentials) meet(raw net.Conn) (net.Conn, string, error) {
	cfg, err := c.tls.config()
	if err != nil {
		return nil, "", err
	}
	name := ""
	// Before the handshake is over: the alert tells the other side.
	cfg.VerifyConnection = func(st tls.ConnectionState) error {
		leaf := st.PeerCertificates[0]
		for _, n := range leaf.DNSNames {
			if c.tls.Known(n) {
				name = n
				return nil
			}
		}
		return fmt.Errorf("its certificate is for %s, which is no NodeName of slurm.conf", namesOf(leaf))
	}
	conn := tls.Server(raw, cfg)
	if err := conn.HandshakeContext(context.Background()); err != nil { // gRPC has set a deadline
		return nil, "", err
	}
	if _, err := conn.Write(welcome); err != nil {
		return nil, "", err
	}
	return conn, name, nil
}

// welcome is the first byte that a client hears when it was let in. Without it a
// client would speak on after its own half of the handshake, and meet a closed
// connection instead of the alert that says why.
var welcome = []byte{1}

func nodePeer(name string) NodePeer {
	return NodePeer{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, Name: name}
}

// ClientHandshake meets the node, and nobody else.
func (c nodeCredentials) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := c.tls.config()
	if err != nil {
		return nil, nil, err
	}
	// The name is a node's, not a host's: it need not be one that DNS allows.
	cfg.InsecureSkipVerify = true
	cfg.VerifyConnection = func(st tls.ConnectionState) error {
		pool := x509.NewCertPool()
		for _, i := range st.PeerCertificates[1:] {
			pool.AddCert(i)
		}
		leaf := st.PeerCertificates[0]
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: cfg.RootCAs, Intermediates: pool}); err != nil {
			return &tls.CertificateVerificationError{UnverifiedCertificates: st.PeerCertificates, Err: err}
		}
		if !hasName(leaf, c.node) {
			return fmt.Errorf("its certificate is for %s, not for %q", namesOf(leaf), c.node)
		}
		return nil
	}
	conn := tls.Client(raw, cfg)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, nil, err
	}
	if d, ok := ctx.Deadline(); ok {
		if err := conn.SetReadDeadline(d); err != nil {
			return nil, nil, err
		}
	}
	got := make([]byte, len(welcome))
	if _, err := io.ReadFull(conn, got); err != nil {
		return nil, nil, err
	}
	return conn, nodePeer(c.node), conn.SetReadDeadline(time.Time{})
}

func (c nodeCredentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (c nodeCredentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName has nothing to override: the node's name is verified.
func (c nodeCredentials) OverrideServerName(string) error { return nil }

// RefusedByPeer tells, of the error of a call to a node, whether that node did
// not want this one's certificate, and why, in words; "" if it is another error.
func RefusedByPeer(err error) string {
	const mark = "remote error: tls: "
	_, why, found := strings.Cut(err.Error(), mark)
	if !found {
		return ""
	}
	why, _, _ = strings.Cut(why, "\"")
	if why == "bad certificate" {
		why = "it is for no NodeName that is known there"
	}
	return why
}

// PeerReason is the error of a call to a node without the words that gRPC puts
// around the failure of a connection.
func PeerReason(err error) string {
	text := status.Convert(err).Message()
	_, quoted, found := strings.Cut(text, "desc = ")
	if !found {
		return text
	}
	inner, uerr := strconv.Unquote(quoted)
	if uerr != nil {
		return text
	}
	return strings.TrimPrefix(inner, "transport: ")
}
