package node

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
)

// labOf makes a CA and a certificate for each node, as noded --bootstrap-ca does.
func labOf(t *testing.T, nodes []string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	var ca *x509.Certificate
	var caKey *ecdsa.PrivateKey
	for i, name := range append([]string{"ca"}, nodes...) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{
			SerialNumber: big.NewInt(int64(i + 1)), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: i == 0, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		}
		if i == 0 {
			ca, caKey = c, key
		}
		der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		secret, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for suffix, block := range map[string]*pem.Block{".pem": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: secret}} {
			if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

// startPeer starts node i of names, which serves the others at l.
func startPeer(t *testing.T, lab string, names []string, all []ClusterNode, i int, l net.Listener, change ...func(*Config)) *testNode {
	t.Helper()
	tn := start(t, t.TempDir(), func(c *Config) {
		c.NodeName = names[i]
		c.Others = &Cluster{
			Nodes: all, Partition: names, Addr: "127.0.0.1", KeepaliveTime: time.Minute, KeepaliveTimeout: time.Minute, // twenty handshakes under -race on a busy machine
			NodeTimeout: testTimeout,
			List:        func(names []string) string { return strings.Join(names, ",") },
			TLS: &api.PeerTLS{
				Certificate: filepath.Join(lab, names[i]+".pem"), Key: filepath.Join(lab, names[i]+".key"), CA: filepath.Join(lab, "ca.pem"),
				Node: names[i], Known: func(name string) bool { return slices.Contains(names, name) },
			},
		}
		for _, f := range change {
			f(c)
		}
	})
	t.Cleanup(tn.stop)
	s := tn.PeerServer()
	tn.peer = s
	go s.Serve(l)
	t.Cleanup(s.Stop)
	return tn
}

// TestFanTree: a request reaches more nodes than one noded asks itself, each once,
// and a node that is away costs its own part alone, also where others are below it.
func TestFanTree(t *testing.T) {
	const count, away = 20, 6 // n7 has n8 below it
	var names []string
	var all []ClusterNode
	var listeners []net.Listener
	for i := range count {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("n%d", i+1))
		all = append(all, ClusterNode{Name: names[i], Addr: l.Addr().String()})
		listeners = append(listeners, l)
	}
	lab := labOf(t, names)
	var head *testNode
	for i, l := range listeners {
		if i == away {
			l.Close()
			continue
		}
		tn := startPeer(t, lab, names, all, i, l)
		if i == 0 {
			head = tn
		}
	}
	answers, err := head.fan(context.Background(), "probe", probeRequest{}, partsOf(names))
	if err != nil || len(answers) != count {
		t.Fatalf("%d answers, %v", len(answers), err)
	}
	for i, a := range answers {
		if i == away {
			if api.CodeOf(a.err) != api.Unavailable || !strings.Contains(a.err.Error(), "cannot be reached") {
				t.Errorf("n7, which is away: %v", a.err)
			}
			continue
		}
		var r probeReply
		if a.err != nil || a.node != names[i] || json.Unmarshal(a.body, &r) != nil || r.CPUs == 0 || r.Next.Job != 1 {
			t.Errorf("%s: %s %q %v", names[i], a.node, a.body, a.err)
		}
	}
	if n := len(head.peers.conns); n > fanOut+3 {
		t.Errorf("the head has spoken with %d nodes itself", n)
	}

	answers, err = head.fan(context.Background(), "dance", probeRequest{}, partsOf(names[:2]))
	if err != nil || api.CodeOf(answers[0].err) != api.Unimplemented || api.CodeOf(answers[1].err) != api.Unimplemented {
		t.Errorf("an unknown request: %v, %v", answers, err)
	}
	for _, in := range []*api.FanRequest{
		{Verb: "probe", Common: []byte("{}"), Parts: partsOf([]string{"n2"}), Depth: fanDepth + 1},
		{Verb: "probe", Common: []byte("{}"), Parts: partsOf([]string{"elsewhere"})},
		{Verb: "probe", Common: []byte("{}"), Parts: partsOf([]string{"n2", "n2"})},
	} {
		c, err := head.peers.client("n2")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Fan(context.Background(), in); api.CodeOf(err) != api.InvalidArgument {
			t.Errorf("%v: %v", in, err)
		}
	}

	// What a head may not say of a node's part.
	layout := &step.Layout{Nodes: []step.LayoutNode{{Name: "n2", Ranks: "0"}, {Name: "n3", Ranks: "1"}}}
	req := request("exit")
	req.NTasks, req.NNodes = 2, 2
	for words, change := range map[string]func(*partRequest){
		"is not in it":                 func(p *partRequest) { p.Layout = &step.Layout{Nodes: layout.Nodes[1:]} },
		"layout: is missing":           func(p *partRequest) { p.Layout = nil },
		"it has 1 of 2 ranks":          func(p *partRequest) { p.Layout = &step.Layout{Nodes: layout.Nodes[:1]} },
		`is user "eve" on n1 and user`: func(p *partRequest) { p.User.Name = "eve" },
		"there is no user 3":           func(p *partRequest) { p.By = 3 },
	} {
		in := partRequest{ID: step.ID{Job: 5}, Head: "n1", By: 1000, User: step.User{Name: "user1000", UID: 1000}, Request: marshal(t, req), Layout: layout}
		change(&in)
		answers, err := head.fan(context.Background(), "reserve", in, partsOf([]string{"n2"}))
		if err != nil || answers[0].err == nil || !strings.Contains(answers[0].err.Error(), words) {
			t.Errorf("want %q, got %v, %v", words, answers, err)
		}
	}
}
