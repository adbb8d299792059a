package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// lab is a CA for a test.
type lab struct {
	t    *testing.T
	dir  string
	made int
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, dir: t.TempDir()}
	l.cert, l.key = l.make("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, time.Hour)
	return l
}

func (l *lab) make(file string, c *x509.Certificate, valid time.Duration) (*x509.Certificate, *ecdsa.PrivateKey) {
	l.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(l.t, err)
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: file}
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(valid)
	parent, parentKey := l.cert, l.key
	if parent == nil {
		parent, parentKey = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	must(l.t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	must(l.t, err)
	must(l.t, os.WriteFile(filepath.Join(l.dir, file+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must(l.t, os.WriteFile(filepath.Join(l.dir, file+".key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	made, err := x509.ParseCertificate(der)
	must(l.t, err)
	return made, key
}

// node makes the certificate of a node, and what uses it. The nodes n1 and n2 are known.
func (l *lab) node(name string, valid time.Duration) *PeerTLS {
	l.t.Helper()
	l.made++
	file := fmt.Sprintf("%d-%s", l.made, name)
	l.make(file, &x509.Certificate{
		DNSNames: []string{name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, valid)
	return &PeerTLS{
		Certificate: filepath.Join(l.dir, file+".pem"), Key: filepath.Join(l.dir, file+".key"), CA: filepath.Join(l.dir, "ca.pem"),
		Node: name, Known: func(n string) bool { return n == "n1" || n == "n2" },
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

type peerEcho struct {
	UnimplementedPeerServer
}

func (peerEcho) Fan(ctx context.Context, _ *FanRequest) (*FanReply, error) {
	p, err := NodePeerOf(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	return &FanReply{Answers: []*FanAnswer{{Node: p.Name}}}, nil
}

// TestPeerTLS: who has a certificate of the CA in a node's name is that node, and
// nobody else is anybody, with words for it on both sides.
func TestPeerTLS(t *testing.T) {
	ours, others := newLab(t), newLab(t)
	for _, c := range []struct {
		name           string
		server, client *PeerTLS
		refused        string // in the server's log
		why            string // of RefusedByPeer, at the client
		err            string // in the client's error
	}{
		{name: "known", server: ours.node("n2", time.Hour), client: ours.node("n1", time.Hour)},
		{
			name: "client of another CA", server: ours.node("n2", time.Hour),
			client:  &PeerTLS{Certificate: others.node("n1", time.Hour).Certificate, Key: filepath.Join(others.dir, "1-n1.key"), CA: filepath.Join(ours.dir, "ca.pem"), Node: "n1"},
			refused: "unknown authority", why: "unknown certificate authority", err: "unknown certificate authority",
		},
		{
			name: "expired client", server: ours.node("n2", time.Hour), client: ours.node("n1", -time.Minute),
			refused: "certificate has expired", why: "expired certificate", err: "expired certificate",
		},
		{
			name: "a name that is no node", server: ours.node("n2", time.Hour), client: ours.node("n9", time.Hour),
			refused: `its certificate is for ["n9"], which is no NodeName`, why: "it is for no NodeName that is known there", err: "bad certificate",
		},
		{
			name: "server of another CA", server: others.node("n2", time.Hour), client: ours.node("n1", time.Hour),
			refused: "remote error: tls: bad certificate", err: "unknown authority",
		},
		{
			name: "another server", server: ours.node("n1", time.Hour), client: ours.node("n1", time.Hour),
			refused: "remote error: tls: bad certificate", err: `its certificate is for ["n1"], not for "n2"`,
		},
		{
			name: "expired server", server: ours.node("n2", -time.Minute), client: ours.node("n1", time.Hour),
			refused: "remote error: tls: bad certificate", err: "certificate has expired",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused := make(chan error, 8)
			c.server.Refused = func(_ string, err error) {
				select {
				case refused <- err:
				default:
				}
			}
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must(t, err)
			s := grpc.NewServer(grpc.Creds(c.server.Server()))
			RegisterPeerServer(s, peerEcho{})
			go s.Serve(l)
			defer s.Stop()
			cc, err := grpc.NewClient("passthrough:///"+l.Addr().String(), grpc.WithTransportCredentials(c.client.Client("n2")))
			must(t, err)
			defer cc.Close()
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			r, err := NewPeerClient(cc).Fan(ctx, &FanRequest{})
			if c.err == "" {
				if err != nil || r.GetAnswers()[0].GetNode() != "n1" {
					t.Fatalf("got %v, %v", r, err)
				}
				return
			}
			if err == nil || !strings.Contains(PeerReason(err), c.err) {
				t.Errorf("the client hears %v, want %q", err, c.err)
			}
			if err != nil && RefusedByPeer(err) != c.why {
				t.Errorf("refused by the peer: %q, want %q (%v)", RefusedByPeer(err), c.why, err)
			}
			if got := (<-refused).Error(); !strings.Contains(got, c.refused) {
				t.Errorf("the server logs %q, want %q", got, c.refused)
			}
		})
	}
}

// TestPeerTLSFiles: what is wrong with the files is told by name.
func TestPeerTLSFiles(t *testing.T) {
	l := newLab(t)
	good := l.node("n1", time.Hour)
	if expired, err := good.Check(); expired != nil || err != nil {
		t.Errorf("good files: %v, %v", expired, err)
	}
	if expired, err := l.node("n2", -time.Minute).Check(); expired == nil || err != nil {
		t.Errorf("an expired certificate: %v, %v", expired, err)
	}
	open := l.node("n3", time.Hour)
	must(t, os.Chmod(open.Key, 0o640))
	foreign := l.node("n4", time.Hour)
	foreign.CA = filepath.Join(newLab(t).dir, "ca.pem")
	other := l.node("n5", time.Hour)
	other.Node = "n6"
	mixed := l.node("n7", time.Hour)
	mixed.Key = good.Key
	notPEM := l.node("n8", time.Hour)
	notPEM.CA = filepath.Join(l.dir, "text")
	must(t, os.WriteFile(notPEM.CA, []byte("hello\n"), 0o600))
	fifo := l.node("n9", time.Hour)
	fifo.CA = l.dir
	for want, p := range map[string]*PeerTLS{
		"n3.key\": others may read or write it (mode 0640): chmod 600": open,
		"does not vouch for it":                   foreign,
		`it is for ["n5"], and this node is "n6"`: other,
		"does not match public key":               mixed,
		"it is no PEM file":                       notPEM,
		"not a regular file":                      fifo,
	} {
		if _, err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
