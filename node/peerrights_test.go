package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"stepd/api"
	"stepd/step"
)

// peerVerb is one request of Fan.
type peerVerb struct {
	name string
	in   any
}

// partVerbs are the names that partVerb knows.
func partVerbs(t *testing.T) (names []string) {
	t.Helper()
	source, err := os.ReadFile("part.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`case "(\w+)":\s+return \(\*Node\)\.part`).FindAllSubmatch(source, -1) {
		names = append(names, string(m[1]))
	}
	if len(names) < 15 || partVerb(names[0]) == nil || partVerb("nothing") != nil {
		t.Fatalf("verbs %q", names)
	}
	return names
}

// TestPeerRights: who may do what to a step of n1 and n2, of which n1 is the head: its
// nodes may, another node of the site may not, by itself or by one that passes its
// request on, and who has no node's certificate is not heard.
func TestPeerRights(t *testing.T) {
	names := []string{"n1", "n2", "n3"}
	lab := labOf(t, append(names, "alice"))
	other := labOf(t, []string{"n1"})
	var nodes []*testNode
	var all []ClusterNode
	var listeners []net.Listener
	for _, name := range names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, l)
		all = append(all, ClusterNode{Name: name, Addr: l.Addr().String()})
	}
	for i, l := range listeners {
		nodes = append(nodes, startPeer(t, lab, names, all, i, l))
	}
	req := request("wait")
	req.NTasks, req.NNodes = 2, 2
	reserve := partRequest{
		ID: step.ID{Job: 5}, Head: "n1", By: 1000, User: step.User{Name: "user1000", UID: 1000}, Request: marshal(t, req),
		Layout: &step.Layout{Nodes: []step.LayoutNode{{Name: "n1", Ranks: "0"}, {Name: "n2", Ranks: "1"}}}, JobNodes: []string{"n1", "n2"},
	}
	reserved := func(id uint32) step.ID {
		t.Helper()
		in := reserve
		in.ID.Job = id
		answers, err := nodes[0].fan(context.Background(), "reserve", in, partsOf(names[:2]))
		for _, a := range answers {
			if err == nil {
				err = a.err
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		return in.ID
	}
	id := reserved(5)
	// A step of n2's own is nobody else's.
	own := nodes[1].run(1000, request("wait"))
	nodes[1].until(own, step.Running)

	job := id.Job
	verbs := []peerVerb{
		{"probe", probeRequest{Job: &job}}, {"reserve", reserve}, {"show", stepRequest{ID: id}}, {"stat", stepRequest{ID: id}},
		{"signal", stepRequest{ID: id, Signal: 15}}, {"suspend", stepRequest{ID: id}}, {"resume", stepRequest{ID: id}}, {"head", stepRequest{ID: id}},
		{"anchor", anchorRequest{Job: id.Job, UID: 1000}}, {"launch", launchRequest{ID: id, Layout: reserve.Layout}},
		{"cancel", stepRequest{ID: id}}, {"release", stepRequest{ID: id}},
		{"allocate", reserve}, {"open", openRequest{ID: id}}, {"hold", stepRequest{ID: id}}, {"dryrun", reserve}, {"watch", stepRequest{ID: id}},
	}
	for _, name := range partVerbs(t) {
		if !slices.ContainsFunc(verbs, func(v peerVerb) bool { return v.name == name }) {
			t.Errorf("nodes may ask each other to %q, and this test asks no stranger's", name)
		}
	}
	ask := func(from *testNode, to, verb string, in any, parts []string) error {
		t.Helper()
		c, err := from.peers.client(to)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Fan(context.Background(), &api.FanRequest{Verb: verb, Common: doc, Parts: partsOf(parts)})
		return err
	}
	for _, v := range verbs {
		for _, way := range []struct {
			to    string
			parts []string
		}{{"n2", []string{"n2"}}, {"n1", []string{"n2"}}, {"n1", []string{"n1", "n2"}}} {
			if err := ask(nodes[2], way.to, v.name, v.in, way.parts); api.CodeOf(err) != api.PermissionDenied {
				t.Errorf("n3 asks %s for %s of %v: %v", way.to, v.name, way.parts, err)
			}
		}
	}
	for _, of := range []step.ID{id, own} {
		for from, want := range map[int]api.Code{0: api.DeadlineExceeded, 2: api.PermissionDenied} {
			if of == own && from == 0 {
				want = api.PermissionDenied
			}
			c, err := nodes[from].peers.client("n2")
			if err != nil {
				t.Fatal(err)
			}
			limit := testTimeout
			if want == api.DeadlineExceeded { // a permitted one waits
				limit = 500 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			if _, err := c.WaitPart(ctx, &api.PartRef{JobId: of.Job, StepId: of.Step}); api.CodeOf(err) != want {
				t.Errorf("%s waits for %s: %v, want %v", names[from], of, err, want)
			}
			cancel()
			lines, err := c.PartEvents(context.Background(), &api.PartEventsRequest{JobId: of.Job, StepId: of.Step})
			if err == nil {
				_, err = lines.Recv()
			}
			if denied := api.CodeOf(err) == api.PermissionDenied; denied != (want == api.PermissionDenied) {
				t.Errorf("%s asks for the events of %s: %v", names[from], of, err)
			}
		}
		if err := ask(nodes[0], "n2", "signal", stepRequest{ID: own, Signal: 9}, []string{"n2"}); api.CodeOf(err) != api.PermissionDenied {
			t.Errorf("n1 signals %s: %v", own, err)
		}
	}
	if rec, err := nodes[1].partRecord(id); err != nil || rec.State != step.Starting && rec.State != step.Pending {
		t.Fatalf("the part: %+v, %v", rec, err)
	}

	// What a node does not know it does not pass on: it is asked by itself.
	if err := ask(nodes[0], "n3", "show", stepRequest{ID: id}, []string{"n3", "n2"}); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("n3 passes on what it does not know: %v", err)
	}
	answers := nodes[0].passOn(context.Background(), &api.FanRequest{Verb: "show", Common: marshal(t, stepRequest{ID: id})}, partsOf([]string{"n3", "n2"}))
	if len(answers) != 2 || answers[0].GetCode() != uint32(codes.NotFound) || answers[1].GetCode() != 0 {
		t.Errorf("n3 and n2: %v", answers)
	}

	// The step's nodes may, whichever asks.
	for _, v := range verbs[2:7] {
		for _, from := range []*testNode{nodes[0], nodes[1]} {
			to := map[bool]string{true: "n2", false: "n1"}[from == nodes[0]]
			if err := ask(from, to, v.name, v.in, []string{to}); err != nil {
				t.Errorf("%s of %s: %v", v.name, to, err)
			}
		}
	}
	for _, v := range []string{"cancel", "release"} {
		if err := ask(nodes[0], "n2", v, stepRequest{ID: id, Reason: "x"}, []string{"n2"}); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}

	// Who is no node of the site.
	for what, files := range map[string][2]string{
		"a user's certificate": {filepath.Join(lab, "alice"), filepath.Join(lab, "ca.pem")},
		"another CA's":         {filepath.Join(other, "n1"), filepath.Join(lab, "ca.pem")},
	} {
		stranger := &peers{cfg: &Cluster{
			Nodes: all, KeepaliveTime: 10 * time.Second, KeepaliveTimeout: 2 * time.Second,
			TLS: &api.PeerTLS{Certificate: files[0] + ".pem", Key: files[0] + ".key", CA: files[1], Node: "n1", Known: func(string) bool { return true }},
		}}
		stranger.conns = make(map[string]*grpc.ClientConn)
		c, err := stranger.client("n2")
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Fan(context.Background(), &api.FanRequest{Verb: "probe", Common: []byte("{}"), Parts: partsOf([]string{"n2"})})
		if err == nil || api.RefusedByPeer(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
		stranger.close()
	}
	raw, err := net.Dial("tcp", all[1].Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	fmt.Fprint(raw, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	raw.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, 4096)
	if n, err := raw.Read(buf); err == nil && !strings.HasPrefix(string(buf[:n]), "\x15") { // a TLS alert
		t.Errorf("without a certificate: %q", buf[:n])
	}
}
