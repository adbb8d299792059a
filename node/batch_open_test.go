package node

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
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
