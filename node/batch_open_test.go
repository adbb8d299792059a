package node

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"stepd/api"
	"stepd/step"
)

// scriptOf makes a program of the site's.
func scriptOf(t *testing.T, body string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "script")
	// A fork of another test must not keep it open for writing: ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestBatchPrologElsewhere: a batch job whose prolog fails on another node is held, as on its
// own (ForceRequeueOnFail), also where that node tells last that its share has ended.
func TestBatchPrologElsewhere(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fails, waits := scriptOf(t, "exit 1"), scriptOf(t, "while test -e "+gate+"; do sleep 0.01; done")
	nodes := twoPeers(t, func(c *Config) {
		c.Others.NodeTimeout = time.Minute
		c.Scripts = Scripts{AtAlloc: true, Requeue: true, StackID: func() (string, error) { return "stack", nil }}
		if c.NodeName == "n1" {
			c.Scripts.Epilog = []string{waits} // its end is under way until then
		} else {
			c.Scripts.Prolog = []string{fails}
		}
	})
	n1, n2 := nodes[0], nodes[1]
	id := n1.batch(ofNodes(2, 2), "wait")
	await(t, func() bool { q := n1.queue.get(id.Job); return q != nil && q.now().Held != "" })
	j := n1.reg.job(id.Job)
	if j == nil {
		t.Fatal("its end is not under way")
	}
	if _, err := asked(t, n2, n1, "release", stepRequest{ID: id, Reason: "Job prolog failed", Run: j.Run}); err != nil {
		t.Fatal(err)
	}
	if q := n1.queue.get(id.Job).now(); !q.Again || q.Cancelled {
		t.Errorf("it is not to run again: %+v", q)
	}
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
	n1.waits(id, "launch failed requeued held: node n2: Job prolog failed: ")
	n2.jobless()
	n1.cancelJob(id)
}

// takesOn takes the job's shares of these nodes, as the queue does.
func (q *queued) takesOn(t *testing.T, names ...string) (*follower, *step.Spec) {
	t.Helper()
	n, rec := q.n, q.now()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	raw, err := n.store.request(rec.Request)
	must(err)
	req, err := n.decode(raw)
	must(err)
	user, err := n.userFor(t.Context(), api.Peer{UID: rec.By}, req)
	must(err)
	var chosen []candidate
	for _, name := range names {
		chosen = append(chosen, candidate{name: name, cpus: 4, free: 4})
	}
	in, err := q.shareRequest(&rec, *req, user, chosen)
	must(err)
	place, err := n.ownShare(in.Layout, req)
	must(err)
	a, _, err := n.reg.tryAdmit(place, user.UID, true, nil)
	must(err)
	f, spec, err := q.takeShares(t.Context(), in, &rec, req, user, a)
	must(err)
	return f, spec
}

// TestBatchOpenFails: a job that a node cannot let take steps runs without that node, and
// not at once.
func TestBatchOpenFails(t *testing.T) {
	nodes := threePeers(t)
	n1, n2 := nodes[0], nodes[1]
	id := n1.batch(func(r *step.Request) { ofNodes(2, 2)(r); r.Hold = true }, "wait") // so that no other start comes in between
	q := n1.queue.get(id.Job)
	f, spec := q.takesOn(t, "n1", "n2")
	n1.queue.mu.Lock()
	q.rec.Started = true
	n1.queue.mu.Unlock()
	first := f.job
	if n2.reg.job(id.Job) == nil {
		t.Fatalf("it has the nodes %v", first.Nodes)
	}
	if err := n2.store.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketJobs).Delete(jobKey(id.Job)) }); err != nil {
		t.Fatal(err)
	}
	n1.reg.opens(first)
	q.openBatch(f, spec)
	within(t, first.ended, "its first run")
	if why := "ReqNodeNotAvail: node n2: cannot store the shares of job 1: "; q.tries.next.IsZero() || !strings.HasPrefix(q.tries.last.why, why) {
		t.Errorf("its next run does not wait: %q", q.tries.last.why)
	}
	if _, err := n1.svc.Hold(as(0), &api.HoldRequest{Job: ref(id), Release: true}); err != nil {
		t.Fatal(err)
	}
	if rec := n1.until(id, step.Running); rec.Restarts != 1 {
		t.Errorf("record %+v", rec)
	}
	if j := n1.reg.job(id.Job); len(j.Nodes) != 2 || j.Nodes[1] != "n3" {
		t.Errorf("its nodes are %v", j.Nodes)
	}
	n2.jobless()
	n1.cancelJob(id)
}

// TestBatchShareEndKept: that a user has ended the job at another node is not lost where that
// one's noded is restarted before the head could hear of it.
func TestBatchShareEndKept(t *testing.T) {
	names := []string{"n1", "n2"}
	lab := labOf(t, names)
	var all []ClusterNode
	var listeners, again []net.Listener
	for _, name := range names {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		file, err := l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		second, err := net.FileListener(file) // nobody else gets the port meanwhile
		if err != nil {
			t.Fatal(err)
		}
		defer second.Close()
		listeners, again = append(listeners, l), append(again, second)
		all = append(all, ClusterNode{Name: name, Addr: l.Addr().String()})
	}
	dir := t.TempDir()
	life := func(c *Config) {
		c.Others.NodeTimeout = time.Minute
		if c.NodeName == "n2" {
			c.RunDir, c.SpoolDir = filepath.Join(dir, "run"), filepath.Join(dir, "spool")
		}
	}
	n1 := startPeer(t, lab, names, all, 0, listeners[0], life)
	away := []ClusterNode{{Name: "n1", Addr: "127.0.0.1:1"}, all[1]} // n2 cannot reach n1
	n2 := startPeer(t, lab, names, away, 1, listeners[1], life)
	id := n1.batch(ofNodes(2, 2), "wait")
	n1.until(id, step.Running)
	if _, err := n2.svc.Cancel(as(0), &api.CancelRequest{Step: &api.StepRef{JobId: id.Job}, Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	n2.peer.Stop()
	n2.stop()
	if recs, err := n1.find(ref(id)); err != nil || recs[0].State != step.Running {
		t.Fatalf("the head has heard of it: %+v, %v", recs, err)
	}
	n2 = startPeer(t, lab, names, all, 1, again[1], life)
	if rec := n1.wait(id); rec.State != step.Cancelled || rec.Reason != "node n2: enough" || rec.Restarts != 0 {
		t.Errorf("record %+v", rec)
	}
	n1.jobless()
	n2.jobless()
}
