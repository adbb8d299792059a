package node

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

// twoPeers starts n1 and n2, which know each other.
func twoPeers(t *testing.T) (nodes []*testNode) {
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
		nodes = append(nodes, startPeer(t, lab, names, all, i, l))
	}
	return nodes
}

// TestSpan: the number of a job of two nodes is one that both have free, a share that is
// ended ends the job on both, and a share that its head does not know is not kept.
func TestSpan(t *testing.T) {
	nodes := twoPeers(t)
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
	orphan := nodes[1].reg.job(7)
	select {
	case <-orphan.ended: // n1 has never heard of it
	case <-time.After(20 * time.Second):
		t.Error("a share whose head does not know of it is kept")
	}
	if _, err := ask("hold", stepRequest{ID: in.ID}); status.Code(err) != codes.NotFound {
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
		case <-time.After(20 * time.Second):
			t.Fatal("the end of one share is not that of the other")
		}
	}
}
