package node

import (
	"net"
	"sync"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
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

// TestBatchSpanSilent: a node that does not answer keeps no other job from its start.
func TestBatchSpanSilent(t *testing.T) {
	frozen := make(chan struct{})
	nodes := threePeers(t, frozen)
	n1 := nodes[0]
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
}
