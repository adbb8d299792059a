package node

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
)

// twoPeers starts n1 and n2, which know each other.
func twoPeers(t *testing.T, change ...func(*Config)) (nodes []*testNode) {
	t.Helper()
	names := []string{"n1", "n2"}
	lab := labOf(t, names)
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
		nodes = append(nodes, startPeer(t, lab, names, all, i, l, change...))
	}
	return nodes
}

// TestSpan: the number of a job of two nodes is one that both have free, a share that is
// ended ends the job on both, and a share that its head does not know is not kept.
func TestSpan(t *testing.T) {
	nodes := twoPeers(t, func(c *Config) { c.Others.NodeTimeout = 2 * time.Second })
	req := request("wait")
	req.NTasks, req.NNodes = 2, 2
	in := partRequest{
		ID: step.ID{Job: 7}, Head: "n1", By: 1000, User: step.User{Name: "user1000", UID: 1000}, Request: marshal(t, req),
		Layout: &step.Layout{Nodes: []step.LayoutNode{{Name: "n1", Ranks: "0"}, {Name: "n2", Ranks: "1"}}}, JobNodes: []string{"n1", "n2"},
	}
	ask := func(verb string, in any) (r shareReply, err error) {
		t.Helper()
		answers, err := nodes[0].fan(context.Background(), verb, in, partsOf([]string{"n2"}))
		if err == nil {
			err = answers[0].err
		}
		if err == nil {
			err = json.Unmarshal(answers[0].body, &r)
		}
		return r, err
	}
	if r, err := ask("allocate", in); err != nil || r.Taken != nil || r.CPUs != 1 {
		t.Fatalf("a share: %+v, %v", r, err)
	}
	if r, err := ask("allocate", in); err != nil || r.Taken == nil || r.Taken.Job != 8 {
		t.Errorf("a number that is taken: %+v, %v", r, err)
	}
	if orphan := nodes[1].reg.job(7); orphan != nil { // else it has ended by now
		select {
		case <-orphan.ended: // n1 has never heard of it
		case <-time.After(testTimeout):
			t.Error("a share whose head does not know of it is kept")
		}
	}
	if _, err := ask("hold", stepRequest{ID: in.ID}); api.CodeOf(err) != api.NotFound {
		t.Errorf("a share that has ended: %v", err)
	}

	// n1 proposes what is free on both, and the number is theirs.
	j, err := nodes[0].Node.alloc(context.Background(), api.Peer{UID: 1000, PID: int32(os.Getpid())}, marshal(t, req))
	if err != nil {
		t.Fatal(err)
	}
	other := nodes[1].reg.job(j.ID)
	if j.ID != 8 || other == nil || other.Head != "n1" || other.UID != 1000 || !other.spans() || len(nodes[1].reg.nodeCPUs(other)) != 2 {
		t.Fatalf("job %d, and on n2 %+v", j.ID, other)
	}
	if !other.open || !j.open || !j.exclusive() {
		t.Error("it takes no steps")
	}
	nodes[1].endAlloc(other, "cancelled")
	for _, ended := range []chan struct{}{j.ended, j.told, other.ended} {
		select {
		case <-ended:
		case <-time.After(testTimeout):
			t.Fatal("the end of one share is not that of the other")
		}
	}
}

// spanned is an allocation of two nodes of uid 1000's, one CPU on each, that no slow answer
// ends.
func spanned(t *testing.T) (nodes []*testNode, j *job) {
	t.Helper()
	nodes = twoPeers(t, func(c *Config) { c.Others.NodeTimeout = time.Minute })
	req := request("wait")
	req.NTasks, req.NNodes = 2, 2
	j, err := nodes[0].Node.alloc(t.Context(), api.Peer{UID: 1000, PID: int32(os.Getpid())}, marshal(t, req))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nodes[0].endAlloc(j, "the test is over") })
	return nodes, j
}

// TestSpanShell: the interactive step of an allocation is one of the node that was asked for
// it, and of no other.
func TestSpanShell(t *testing.T) {
	nodes, j := spanned(t)
	reserve := func(n *testNode, change func(*step.Request)) error {
		shell := request("wait")
		shell.Job, shell.Interactive = &j.ID, true
		change(&shell)
		_, _, err := n.Node.reserve(t.Context(), api.Peer{UID: 1000}, &api.RunRequest{Request: marshal(t, shell)}, step.Pending, nil)
		return err
	}
	if err := reserve(nodes[1], func(*step.Request) {}); api.CodeOf(err) != api.FailedPrecondition || !strings.Contains(err.Error(), "interactive: node n1 was asked for job ") {
		t.Errorf("asked for on n2: %v", err)
	}
	for i, away := range []func(*step.Request){
		func(r *step.Request) { r.WantNodes = []string{"n2"} },
		func(r *step.Request) { r.NotNodes = []string{"n1"} },
		func(r *step.Request) { r.NNodesMax = 2 },
	} {
		if err := reserve(nodes[0], away); api.CodeOf(err) != api.InvalidArgument || !strings.Contains(err.Error(), "interactive: ") {
			t.Errorf("elsewhere, %d: %v", i, err)
		}
	}
	if err := reserve(nodes[0], func(r *step.Request) { r.WantNodes = []string{"n1"} }); err != nil || nodes[0].reg.follower(interactiveID(j)) == nil {
		t.Errorf("on n1: %v", err)
	}
}

// TestSpanBytes: the request of a step of several nodes counts once on each node that holds
// it.
func TestSpanBytes(t *testing.T) {
	nodes, j := spanned(t)
	req := request("wait")
	req.Job, req.NTasks, req.NNodes = &j.ID, 2, 2
	both := marshal(t, req)
	req.NTasks, req.NNodes, req.WantNodes, req.Overlap = 1, 1, []string{"n2"}, true
	other := marshal(t, req)
	for _, n := range nodes {
		n.reg.mu.Lock()
		n.reg.perUser.RequestBytes = max(len(both), len(other)) * 3 / 2
		n.reg.mu.Unlock()
	}
	bytes := func() (all []int) {
		for _, n := range nodes {
			n.reg.mu.Lock()
			all = append(all, n.reg.waiting[1000])
			n.reg.mu.Unlock()
		}
		return all
	}
	for _, raw := range [][]byte{both, other} {
		c := newClient(t, 1000)
		reply, err := nodes[0].svc.Reserve(c.ctx, &api.RunRequest{Request: raw})
		if err != nil {
			t.Fatal(err)
		}
		want := []int{len(raw), len(raw)}
		if got := bytes(); !slices.Equal(got, want) {
			t.Errorf("bytes on the nodes: %v, want %v", got, want)
		}
		if _, err := nodes[0].svc.Reserve(c.ctx, &api.RunRequest{Request: raw}); api.CodeOf(err) != api.ResourceExhausted {
			t.Errorf("a second one: %v", err)
		}
		if got := bytes(); !slices.Equal(got, want) {
			t.Errorf("bytes on the nodes after a refusal: %v, want %v", got, want)
		}
		h := nodes[0].heads.get(step.ID{Job: reply.JobId, Step: reply.StepId})
		c.kill()
		select {
		case <-h.ended:
		case <-time.After(testTimeout):
			t.Fatal("it is not given back")
		}
		await(t, func() bool { return slices.Equal(bytes(), []int{0, 0}) }) // the nodes give theirs back after they have answered
	}
}
