package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
)

// threePeers starts n1, n2 and n3, of 4 CPUs each. n3 does not answer any more once frozen is
// closed.
func threePeers(t *testing.T, frozen ...chan struct{}) (nodes []*testNode) {
	t.Helper()
	return threePeersAs(t, func(c *Config) { c.Memory = Memory{MB: 1000, Consumable: true} }, frozen...)
}

func threePeersAs(t *testing.T, change func(*Config), frozen ...chan struct{}) (nodes []*testNode) {
	t.Helper()
	names := []string{"n1", "n2", "n3"}
	lab := labOf(t, names)
	var all []ClusterNode
	var listeners []net.Listener
	for _, name := range names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if len(frozen) > 0 && name == "n3" {
			l = frozenListener{l, frozen[0]}
		}
		listeners = append(listeners, l)
		all = append(all, ClusterNode{Name: name, Addr: l.Addr().String()})
	}
	for i, l := range listeners {
		nodes = append(nodes, startPeer(t, lab, names, all, i, l, change))
	}
	return nodes
}

// of makes a request one of so many nodes and tasks.
func ofNodes(nnodes, ntasks int, want ...string) func(*step.Request) {
	return func(r *step.Request) { r.NNodes, r.NTasks, r.WantNodes = nnodes, ntasks, want }
}

// fill has all CPUs of the node until it is cancelled.
func (tn *testNode) fill() step.ID {
	tn.t.Helper()
	req := request("wait")
	req.NTasks = 4
	id := tn.run(1000, req)
	tn.until(id, step.Running)
	return id
}

// jobless waits until the node has no job.
func (tn *testNode) jobless() {
	tn.t.Helper()
	eventually(tn.t, func() error {
		if jobs := tn.reg.all(); len(jobs) > 0 {
			return fmt.Errorf("%s has job %d", tn.cfg.NodeName, jobs[0].ID)
		}
		return nil
	})
}

func eventually(t testing.TB, ok func() error) {
	t.Helper()
	deadline := time.Now().Add(testTimeout)
	for {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// TestBatchSpan: a batch job of two nodes has one number on both, which is beyond all that
// they have given out, a share of each, and ends on both, whoever ends it.
func TestBatchSpan(t *testing.T) {
	nodes := threePeers(t)
	n1, n2 := nodes[0], nodes[1]
	for range 5 { // n2's numbers are ahead
		n2.wait(n2.run(1000, request("exit", "0")))
	}
	share := func(tn *testNode, id step.ID) *job {
		t.Helper()
		j := tn.reg.job(id.Job)
		tn.reg.mu.Lock()
		defer tn.reg.mu.Unlock()
		if j == nil || !j.OfBatch || j.Head != "n1" || !j.spans() || !j.open || j.doc().Origin != step.OriginBatch || !j.exclusive() {
			t.Fatalf("the share of %s: %+v", tn.cfg.NodeName, j)
		}
		return j
	}
	id := n1.batch(ofNodes(2, 3), "wait")
	n1.until(id, step.Running)
	j, other := n1.reg.job(id.Job), share(n2, id)
	if id.Job != 6 || !j.leadsBatch() || fmt.Sprint(j.Nodes, j.NodeCPUs, other.NodeCPUs, len(other.cpus)) != "[n1 n2] [2 1] [2 1] 1" {
		t.Errorf("job %d: %+v, and on n2 %+v", id.Job, j.jobRecord, other.jobRecord)
	}
	if next := n2.run(1000, request("exit", "0")); next.Job != 7 {
		t.Errorf("the next job of n2 is %d", next.Job)
	}
	if _, err := n2.svc.Cancel(as(1500), &api.CancelRequest{Step: &api.StepRef{JobId: id.Job}}); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("another's job: %v", err)
	}
	if _, err := n2.svc.Cancel(as(0), &api.CancelRequest{Step: &api.StepRef{JobId: id.Job}, Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	if rec := n1.wait(id); rec.State != step.Cancelled || rec.Reason != "node n2: enough" || rec.Restarts != 0 {
		t.Errorf("cancelled at n2: %+v", rec)
	}
	// It runs again, with another number of its next step, where it is put back.
	id = n1.batch(ofNodes(2, 2, "n1", "n2"), "wait")
	n1.until(id, step.Running)
	req := request("exit", "0")
	req.Job, req.NNodes, req.NTasks = &id.Job, 2, 2
	head, err := n1.reserveHead(context.Background(), api.Peer{UID: 0}, &req, marshal(t, req), step.Starting, nil)
	if err != nil || head.id != (step.ID{Job: id.Job}) {
		t.Fatalf("its step: %v, %v", head, err)
	}
	first := share(n2, id)
	if _, err := n1.svc.Requeue(as(0), ref(id)); err != nil {
		t.Fatal(err)
	}
	within(t, first.ended, "the share of the first run")
	eventually(t, func() error {
		j := n2.reg.job(id.Job)
		n2.reg.mu.Lock()
		defer n2.reg.mu.Unlock()
		if j == nil || j == first || j.Restarts != 1 || j.NextStep != 1 || !j.open {
			return errors.New("there is no share of its second run")
		}
		return nil
	})
	n1.until(id, step.Running)
	n1.cancelJob(id)
	n1.jobless()
	n2.jobless()
}

// TestBatchSpanWaits: for what others have, with those behind it; without them for what is
// not there.
func TestBatchSpanWaits(t *testing.T) {
	nodes := threePeers(t)
	n1, n2, n3 := nodes[0], nodes[1], nodes[2]
	full := []step.ID{n2.fill(), n3.fill()}
	id := n1.batch(ofNodes(2, 2), "wait")
	n1.waits(id, "Resources: the step does not fit: 2 nodes are needed and 1 of 3 can be had (n2: 0 CPUs are free; n3: 0 CPUs are free)")
	behind := n1.batch(nil, "wait")
	n1.waits(behind, fmt.Sprintf("Priority: behind job %d", id.Job))
	if jobs := n1.reg.all(); len(jobs) > 0 {
		t.Errorf("n1 has job %d, which waits", jobs[0].ID)
	}
	n3.cancelJob(full[1])
	n1.until(id, step.Running)
	n1.until(behind, step.Running)
	if j := n1.reg.job(id.Job); fmt.Sprint(j.Nodes) != "[n1 n3]" {
		t.Errorf("it has the nodes %v", j.Nodes)
	}
	n1.cancelJob(id)
	n3.jobless()

	if _, err := n3.svc.Drain(as(0), &api.DrainRequest{Reason: "new disk"}); err != nil {
		t.Fatal(err)
	}
	id = n1.batch(ofNodes(2, 2, "n1", "n3"), "exit 0")
	n1.waits(id, "ReqNodeNotAvail: node n3: drained: new disk")
	n1.wait(n1.batch(nil, "exit 0")) // behind it, and not held up
	if _, err := n3.svc.Resume(as(0), &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	if rec := n1.wait(id); rec.State != step.Completed {
		t.Errorf("after the drain: %+v", rec)
	}
	n1.cancelJob(behind)
	n2.cancelJob(full[0])
}

// TestBatchSpanNumbers: what never fits spends no number; a number that another job has is
// found at the start, which does without that node, or is held where it is named.
func TestBatchSpanNumbers(t *testing.T) {
	nodes := threePeers(t)
	n1, n2 := nodes[0], nodes[1]
	for _, d := range []struct {
		change func(*step.Request)
		want   string
	}{
		{ofNodes(4, 4), "4 nodes are needed and 3 of 3 can be had"},
		{ofNodes(2, 9), "9 tasks of 1 CPU each on 2 nodes"},
		{ofNodes(1, 1, "n2"), "a batch job has the node among its own whose noded is asked for it, here n1"},
		{ofNodes(2, 2, "n1", "n9"), `no NodeName "n9"`},
	} {
		req := batch("exit 0")
		d.change(&req)
		_, err := n1.svc.Run(as(uint32(os.Getuid())), &api.RunRequest{Request: marshal(t, req)})
		if err == nil || !strings.Contains(err.Error(), d.want) {
			t.Errorf("got %v, want %q", err, d.want)
		}
	}
	held := func(change func(*step.Request)) func(*step.Request) {
		return func(r *step.Request) { change(r); r.Hold = true }
	}
	release := func(id step.ID) {
		t.Helper()
		if _, err := n1.svc.Hold(as(0), &api.HoldRequest{Job: ref(id), Release: true}); err != nil {
			t.Fatal(err)
		}
	}
	// Somebody has the number on n2, which could not be told of it.
	take := func(id step.ID) {
		t.Helper()
		if _, err := n2.store.lend(&jobRecord{ID: id.Job}, nil, lentRecord{Head: "n3"}); err != nil {
			t.Fatal(err)
		}
	}
	id := n1.batch(held(ofNodes(2, 2)), "wait")
	if id.Job != 1 {
		t.Errorf("refused jobs have spent numbers: the first is %d", id.Job)
	}
	take(id)
	release(id)
	n1.until(id, step.Running)
	if j := n1.reg.job(id.Job); fmt.Sprint(j.Nodes) != "[n1 n3]" {
		t.Errorf("it has the nodes %v", j.Nodes)
	}
	id = n1.batch(held(ofNodes(2, 2, "n1", "n2")), "exit 0")
	take(id)
	release(id)
	n1.waits(id, fmt.Sprintf("BadConstraints: node n2: another job has the number %d there", id.Job))
	if q := n1.queue.get(id.Job); q.now().Held == "" {
		t.Error("it is not held")
	}
	if err := n2.store.endJob(id.Job); err != nil {
		t.Fatal(err)
	}
	release(id) // that job is gone, and nothing is known of it
	if rec := n1.wait(id); rec.State != step.Completed {
		t.Errorf("released: %+v", rec)
	}
	// Numbers of an array follow each other, on all nodes.
	req := batch("exit 0")
	ofNodes(2, 2)(&req)
	req.Array = "0-2"
	first := n1.run(uint32(os.Getuid()), req)
	if next := n2.run(1000, request("exit", "0")); next.Job != first.Job+3 {
		t.Errorf("an array from %d on, and then job %d of n2", first.Job, next.Job)
	}
	for i := range uint32(3) {
		if rec := n1.wait(step.ID{Job: first.Job + i, Step: step.BatchStep}); rec.State != step.Completed {
			t.Errorf("task %d: %+v", i, rec)
		}
	}
}

// TestLend: of the numbers that a node has given out a batch job of another node's queue has
// those alone of which nothing is kept, and its own again.
func TestLend(t *testing.T) {
	tn := fresh(t)
	own := tn.run(1000, request("exit", "0"))
	tn.wait(own)
	if err := tn.store.takeJobs(2, 3); err != nil {
		t.Fatal(err)
	}
	to := lentRecord{Head: "n7", Submitted: time.Now().Round(0), NextStep: 2}
	if _, err := tn.store.lend(&jobRecord{ID: own.Job}, nil, to); err == nil || !strings.Contains(err.Error(), "the number is taken; 5") {
		t.Errorf("the number of a step that has ended: %v", err)
	}
	for run, want := range []uint32{2, 9} {
		j := jobRecord{ID: 3}
		again, err := tn.store.lend(&j, nil, to)
		if err != nil || again != (run > 0) || j.NextStep != want {
			t.Fatalf("run %d: %v, %v, %+v", run, again, err, j)
		}
		if _, err := tn.store.lend(&jobRecord{ID: 3}, nil, lentRecord{Head: "n8"}); err == nil {
			t.Error("two heads have the same number")
		}
		if _, err := tn.store.lend(&jobRecord{ID: 3}, nil, to); !errors.Is(err, errLent) {
			t.Errorf("a second share beside the first: %v", err)
		}
		rec := step.Record{}
		if err := tn.store.newStepAs(step.ID{Job: 3, Step: 8}, 3, &rec); run == 0 && err != nil {
			t.Fatal(err)
		}
		if err := tn.store.endJob(3); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tn.store.lend(&jobRecord{ID: 9}, nil, to); err != nil { // nobody has told of it
		t.Error(err)
	}
	if next := tn.run(1000, request("exit", "0")); next.Job != 10 {
		t.Errorf("the next job is %d", next.Job)
	}
	var r numberReply
	for _, in := range []numberRequest{{First: 10, Count: 1}, {First: 11, Count: 1}, {First: 11, Count: 0}} {
		doc, err := tn.partNumber(context.Background(), marshal(t, in), nil)
		if err == nil {
			err = json.Unmarshal(marshal(t, doc), &r)
		}
		if (in.Count == 0) != (err != nil) || in.First == 10 && r.Taken != 11 {
			t.Errorf("%+v: %+v, %v", in, r, err)
		}
	}
}
