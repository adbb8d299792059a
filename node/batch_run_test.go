package node

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
)

// asked is what a node says to a request of another one's.
func asked(t *testing.T, from, to *testNode, verb string, in any) (r shareReply, err error) {
	t.Helper()
	answers, err := from.fan(t.Context(), verb, in, partsOf([]string{to.cfg.NodeName}))
	if err == nil {
		err = answers[0].err
	}
	if err == nil {
		err = json.Unmarshal(answers[0].body, &r)
	}
	return r, err
}

// TestBatchShareRuns: what is said of one run of a batch job changes nothing of another one's
// share, and a node that does not know the job cannot have its share ended.
func TestBatchShareRuns(t *testing.T) {
	nodes := threePeersAs(t, func(c *Config) { c.Others.NodeTimeout = time.Hour }) // nobody asks for the shares
	n1, n2, n3 := nodes[0], nodes[1], nodes[2]
	req := request("wait")
	req.NTasks, req.NNodes = 2, 2
	in := partRequest{
		ID: step.ID{Job: 7}, Head: "n1", By: 1000, User: step.User{Name: "user1000", UID: 1000}, Request: marshal(t, req),
		Layout: &step.Layout{Nodes: []step.LayoutNode{{Name: "n1", Ranks: "0"}, {Name: "n2", Ranks: "1"}}}, JobNodes: []string{"n1", "n2"},
	}
	now := time.Now().Round(0)
	run := shareRun{Submitted: now.Add(-time.Hour), Restarts: 1, Asked: now}
	allocate := func(run shareRun) shareReply {
		t.Helper()
		in.Batch = &batchShare{shareRun: run}
		r, err := asked(t, n1, n2, "allocate", in)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if r := allocate(run); r.CPUs != 1 || r.Busy != "" {
		t.Fatalf("a share: %+v", r)
	}
	j := n2.reg.job(7)
	for what, other := range map[string]shareRun{
		"a stranger's":       {Submitted: now, Restarts: 2, Asked: now.Add(time.Minute)},
		"an earlier run's":   {Submitted: run.Submitted, Asked: now.Add(time.Minute)},
		"an earlier try's":   {Submitted: run.Submitted, Restarts: 1, Asked: now.Add(-time.Minute)},
		"a later job's zero": {Submitted: now.Add(time.Hour)},
	} {
		if r := allocate(other); r.Busy == "" {
			t.Errorf("%s: %+v", what, r)
		}
		_, released := asked(t, n1, n2, "release", stepRequest{ID: in.ID, Run: &other})
		_, opened := asked(t, n1, n2, "open", openRequest{ID: in.ID, User: in.User, NodeCPUs: []int{1, 1}, Run: &other})
		_, held := asked(t, n1, n2, "hold", stepRequest{ID: in.ID, Run: &other})
		if released != nil || api.CodeOf(opened) != api.NotFound || api.CodeOf(held) != api.NotFound || n2.reg.job(7) != j || n2.reg.isShut(j) {
			t.Errorf("%s: release: %v; open: %v; hold: %v", what, released, opened, held)
		}
	}
	if _, err := asked(t, n1, n2, "hold", stepRequest{ID: in.ID, Run: &run}); err != nil {
		t.Error(err)
	}
	// A node says that it and n2 are the job's.
	its := in
	its.Batch, its.JobNodes = &batchShare{shareRun: shareRun{Submitted: now}}, []string{"n2", "n3"}
	its.Layout = &step.Layout{Nodes: []step.LayoutNode{{Name: "n2", Ranks: "0"}, {Name: "n3", Ranks: "1"}}}
	if r, err := asked(t, n3, n2, "allocate", its); err != nil || r.Busy == "" || n2.reg.isShut(j) {
		t.Errorf("a stranger's share: %+v, %v", r, err)
	}
	its.Batch.shareRun = run
	its.Layout = in.Layout
	if _, err := asked(t, n3, n2, "allocate", its); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("a share for others: %v", err)
	}
	run.Asked = now.Add(time.Second)
	if r := allocate(run); r.Busy == "" {
		t.Errorf("a second share: %+v", r)
	}
	within(t, j.ended, "the share of the try before")
	if r := allocate(run); r.CPUs != 1 || r.Busy != "" {
		t.Errorf("the next share: %+v", r)
	}
	if _, err := asked(t, n1, n2, "release", stepRequest{ID: in.ID, Run: &run}); err != nil {
		t.Error(err)
	}
	n2.jobless()

	// A share that is stored, and not known yet.
	in.ID.Job = 9
	if _, err := n2.store.lend(&jobRecord{ID: 9}, nil, lentRecord{Head: "n1", Submitted: run.Submitted}); err != nil {
		t.Fatal(err)
	}
	if r := allocate(run); !strings.Contains(r.Busy, errLent.Error()) || len(n2.reg.all()) > 0 {
		t.Errorf("while the share is stored: %+v", r)
	}
	if _, free, _ := n2.reg.room(nil); free != 4 {
		t.Errorf("%d CPUs are free", free)
	}
}

// TestBatchHeadRuns: a late word of the end of a share does not end the job's next run.
func TestBatchHeadRuns(t *testing.T) {
	nodes := threePeersAs(t, func(c *Config) { c.Others.NodeTimeout = time.Hour })
	n1, n2, n3 := nodes[0], nodes[1], nodes[2]
	id := n1.batch(ofNodes(2, 2), "wait")
	n1.until(id, step.Running)
	run := *n1.reg.job(id.Job).Run
	if other := n2.reg.job(id.Job).Run; !other.is(&run) || run.Asked.IsZero() {
		t.Errorf("the run is %+v, and on n2 %+v", run, other)
	}
	for _, d := range []struct {
		to   *testNode
		verb string
		in   any
		want api.Code
	}{
		{n1, "release", stepRequest{ID: id, Run: &run}, api.PermissionDenied},
		{n2, "release", stepRequest{ID: id, Run: &run}, api.PermissionDenied},
		{n2, "open", openRequest{ID: id, Run: &run}, api.PermissionDenied},
		{n2, "hold", stepRequest{ID: id, Run: &run}, api.PermissionDenied},
		{n1, "hold", stepRequest{ID: id, Run: &run}, api.NotFound}, // it may have had a share before
		{n2, "number", numberRequest{First: 1000, Count: 2}, api.OK},
	} {
		if _, err := asked(t, n3, d.to, d.verb, d.in); api.CodeOf(err) != d.want {
			t.Errorf("n3, which has no part of it, asks %s to %s: %v, want %v", d.to.cfg.NodeName, d.verb, err, d.want)
		}
	}
	late := run
	late.Asked = late.Asked.Add(-time.Second)
	if _, err := asked(t, n2, n1, "release", stepRequest{ID: id, Reason: "late", Run: &late}); err != nil {
		t.Error(err)
	}
	if q := n1.queue.get(id.Job); q == nil || q.now().Cancelled {
		t.Error("it has ended the next run")
	}
	if _, err := asked(t, n2, n1, "release", stepRequest{ID: id, Reason: "enough", Run: &run}); err != nil {
		t.Error(err)
	}
	if rec := n1.wait(id); rec.State != step.Cancelled || rec.Reason != "enough" {
		t.Errorf("record %+v", rec)
	}
	n1.jobless()
	n2.jobless()
}

// within waits for an end, as long as tests wait.
func within(t *testing.T, end <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-end:
	case <-time.After(testTimeout):
		t.Fatalf("it has no end: %s", what)
	}
}
