package node

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"

	"google.golang.org/grpc/codes"
)

// frozenListener is that of a node which hears nothing any more once frozen is closed: its
// connections stay.
type frozenListener struct {
	net.Listener
	frozen chan struct{}
}

func (l frozenListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	closed := make(chan struct{})
	return frozenConn{c, l.frozen, closed, sync.OnceFunc(func() { close(closed) })}, nil
}

type frozenConn struct {
	net.Conn
	frozen, closed chan struct{}
	over           func()
}

func (c frozenConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	select {
	case <-c.frozen:
		<-c.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (c frozenConn) Close() error {
	c.over()
	return c.Conn.Close()
}

// TestBatchSpanSilent: a node that does not answer keeps no other job from its start, and of
// those that answer none gives the number of a batch job to another one.
func TestBatchSpanSilent(t *testing.T) {
	frozen := make(chan struct{})
	nodes := threePeers(t, frozen)
	n1, n2 := nodes[0], nodes[1]
	n1.queue.mu.Lock()
	n1.queue.askTime = time.Hour
	n1.queue.mu.Unlock()
	id := n1.batch(func(r *step.Request) { ofNodes(2, 2, "n1", "n3")(r); r.Hold = true }, "exit 0")
	close(frozen)
	n1.queue.unsee() // what n3 has said at the submission
	if _, err := n1.svc.Hold(as(0), &api.HoldRequest{Job: ref(id), Release: true}); err != nil {
		t.Fatal(err)
	}
	n1.waits(id, "Resources: other nodes are asked what they have")
	if rec := n1.wait(n1.batch(nil, "exit 0")); rec.State != step.Completed {
		t.Errorf("the job behind it: %+v", rec)
	}
	if a := n1.queue.asker(); a == nil || a.q.job != id.Job {
		t.Errorf("it asks no more: %+v", a)
	}
	// Nor is it counted as started meanwhile.
	if _, err := n1.svc.Hold(as(0), &api.HoldRequest{Job: ref(id)}); err != nil {
		t.Error(err)
	}
	n1.cancelJob(id)
	n1.wait(id)

	id = n1.batch(func(r *step.Request) { ofNodes(2, 2)(r); r.Hold = true }, "exit 0")
	if next := n2.run(1000, request("exit", "0")); next.Job != id.Job+1 {
		t.Errorf("n2 has given out the number %d after that of job %d", next.Job, id.Job)
	}
	n1.cancelJob(id)

	// Nor does it cost those their answer that it would have passed the question on to.
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	in := &api.FanRequest{Verb: "probe", Common: []byte("{}")}
	answers := n1.passOn(ctx, in, partsOf([]string{"n3", "n2"}))
	if len(answers) != 2 || answers[0].GetCode() != uint32(codes.Unavailable) || answers[1].GetCode() != 0 {
		t.Errorf("behind n3: %v", answers)
	}
}

// TestBatchSpanBusy: a job does without a node that has CPUs and not the rest, and waits for
// it where it cannot; a limit of its user's is nobody else's.
func TestBatchSpanBusy(t *testing.T) {
	nodes := threePeers(t)
	n1, n2, n3 := nodes[0], nodes[1], nodes[2]
	use := func(tn *testNode, mb uint64) {
		tn.reg.mu.Lock()
		defer tn.reg.mu.Unlock()
		tn.reg.mem.used = mb
		tn.reg.tellFreed()
	}
	big := func(r *step.Request) { ofNodes(2, 2)(r); r.Mem = mb(100) }
	use(n2, 1000)
	id := n1.batch(big, "wait")
	n1.until(id, step.Running)
	if j := n1.reg.job(id.Job); fmt.Sprint(j.Nodes) != "[n1 n3]" {
		t.Errorf("it has the nodes %v", j.Nodes)
	}
	n1.cancelJob(id)
	n1.jobless()
	n3.jobless()
	use(n3, 1000)
	id = n1.batch(big, "exit 0")
	behind := n1.batch(nil, "exit 0")
	n1.waits(id, "Resources: the step does not fit: 2 nodes are needed and 1 of 3 can be had (n2: ")
	n1.waits(behind, fmt.Sprintf("Priority: behind job %d", id.Job))
	use(n2, 0)
	n1.completes(id, behind)
	use(n3, 0)

	// A limit of the job's user on another node.
	n2.reg.mu.Lock()
	n2.reg.perUser.Steps = 1
	n2.reg.mu.Unlock()
	one := n2.run(1000, request("wait"))
	n2.until(one, step.Running)
	uid := uint32(1000)
	req := batch("exit 0")
	ofNodes(2, 2, "n1", "n2")(&req)
	req.UID = &uid
	id = n1.run(0, req)
	n1.waits(id, "UserStepsMax: node n2: uid 1000 has 1 steps")
	n1.completes(n1.batch(nil, "exit 0"))
	n2.cancelJob(one)
	n1.completes(id)
}

// TestShareOfNoHead: a share whose number is none is refused; one whose head has nothing to do
// with it ends at once.
func TestShareOfNoHead(t *testing.T) {
	nodes := threePeers(t)
	n1, n2 := nodes[0], nodes[1]
	id := n1.batch(ofNodes(2, 2, "n1", "n3"), "wait")
	n1.until(id, step.Running)
	req := request("wait")
	req.NTasks, req.NNodes = 2, 2
	lend := func(job uint32) error {
		_, err := n2.lendShare(&partRequest{
			ID: step.ID{Job: job}, Head: "n1", JobNodes: []string{"n1", "n2"}, Batch: &batchShare{},
			Layout: &step.Layout{Nodes: []step.LayoutNode{{Name: "n1", Ranks: "0"}, {Name: "n2", Ranks: "1"}}},
		}, &req, step.User{Name: "user1000", UID: 1000})
		return err
	}
	for _, job := range []uint32{0, jobsEnd, 1<<32 - 1} {
		if err := lend(job); api.CodeOf(err) != api.InvalidArgument {
			t.Errorf("the number %d: %v", job, err)
		}
	}
	if err := n2.store.newJobAs(step.ID{Job: jobsEnd}, &jobRecord{}, nil, nil); err == nil {
		t.Error("an allocation has a number that is none")
	}
	if err := lend(id.Job); err != nil {
		t.Fatal(err)
	}
	j := n2.reg.job(id.Job)
	if _, err := n2.svc.Cancel(as(0), &api.CancelRequest{Step: &api.StepRef{JobId: id.Job}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-j.ended:
	case <-time.After(n2.cfg.Others.NodeTimeout / 2): // its head is not told again and again
		t.Error("the share has not ended")
	}
	n1.cancelJob(id)
	n1.wait(id)
}
