package node

import (
	"encoding/json"
	"strings"
	"testing"

	"stepd/api"
	"stepd/step"
)

func (tn *testNode) doc() api.Node {
	tn.t.Helper()
	reply, err := tn.svc.Node(as(0), &api.Empty{})
	if err != nil {
		tn.t.Fatal(err)
	}
	var doc api.Node
	if err := json.Unmarshal(reply.Node, &doc); err != nil {
		tn.t.Fatal(err)
	}
	return doc
}

// TestStepDrains: a step's end may drain the node; the first reason stays, what
// runs goes on, a restart changes nothing, resume clears it.
func TestStepDrains(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	running := tn.run(1000, request("wait"))
	tn.until(running, step.Running)
	// It is admitted before the node is drained.
	second := newClient(t, 1000)
	waits := tn.reserve(second, request("drain", "second reason\x1b[2J"))
	rec := tn.wait(tn.run(1000, request("drain", "first", "reason")))
	if rec.State != step.Failed || rec.Drain != "first reason" {
		t.Errorf("record %+v", rec)
	}
	if d := tn.doc(); d.State != "DRAINING" || d.Reason != "first reason" || d.DrainedBy != "noded" || d.DrainedSince == nil {
		t.Errorf("node %s %q, drained by %q since %v", d.State, d.Reason, d.DrainedBy, d.DrainedSince)
	}
	_, err := tn.svc.Run(as(1000), runRequest(request("exit", "0")))
	if api.CodeOf(err) != api.FailedPrecondition || !strings.Contains(err.Error(), "first reason") {
		t.Errorf("a step on the drained node: %v", err)
	}
	if err := tn.launch(second.ctx, waits, step.LaunchChange{}); err != nil {
		t.Fatal(err)
	}
	tn.wait(waits)
	if d := tn.doc(); d.Reason != "first reason" {
		t.Errorf("the reason is %q now", d.Reason)
	}
	tn.stop()
	tn = start(t, dir, nil)
	t.Cleanup(tn.stop)
	tn.until(running, step.Running)
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(running)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(running)
	if d := tn.doc(); d.State != "DRAINED" || d.Reason != "first reason" {
		t.Errorf("node %s %q after the restart", d.State, d.Reason)
	}
	if _, err := tn.svc.Resume(as(0), &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	if d := tn.doc(); d.State != "IDLE" || d.Reason != "" {
		t.Errorf("node %s %q after resume", d.State, d.Reason)
	}
	tn.wait(tn.run(1000, request("drain", "a\nb")))
	if d := tn.doc(); d.Reason != "a b" {
		t.Errorf("reason %q", d.Reason)
	}
}

// TestDrainReason: what the site's files promise and the node has not drains it
// at the start, behind a reason that exists already.
func TestDrainReason(t *testing.T) {
	dir := t.TempDir()
	lacking := func(c *Config) { c.DrainReason = "gres/gpu: /dev/x: no such file or directory" }
	for range 2 { // a restart says it once
		tn := start(t, dir, lacking)
		if d := tn.doc(); d.State != "DRAINED" || d.Reason != "gres/gpu: /dev/x: no such file or directory" {
			t.Errorf("node %s %q", d.State, d.Reason)
		}
		tn.stop()
	}
	tn := start(t, dir, nil)
	if d := tn.doc(); d.State != "DRAINED" {
		t.Errorf("node %s: it is the administrator's to resume", d.State)
	}
	if _, err := tn.svc.Drain(as(0), &api.DrainRequest{Reason: "disk"}); err != nil {
		t.Fatal(err)
	}
	tn.stop()
	tn = start(t, dir, lacking)
	defer tn.stop()
	if d := tn.doc(); d.Reason != "disk" || !strings.HasPrefix(d.DrainedBy, "root") || d.DrainedSince == nil {
		t.Errorf("reason %q, drained by %q since %v", d.Reason, d.DrainedBy, d.DrainedSince)
	}
}
