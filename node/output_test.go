package node

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"stepd/api"
	"stepd/step"
)

// TestOutput: what a step has left is its owner's and root's, and of ended steps only.
func TestOutput(t *testing.T) {
	tn := fresh(t)
	id := tn.run(1000, request("wait"))
	tn.until(id, step.Running)
	read := func(uid uint32) ([]byte, error) {
		return tn.svc.ask(as(uid), "output", &api.RefRequest{StepRef: ref(id)})
	}
	if _, err := read(1000); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("of a running step: %v", err)
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(id)
	if _, err := read(1000); api.CodeOf(err) != api.NotFound {
		t.Errorf("of one that has left none: %v", err)
	}
	want := bytes.Repeat([]byte("kept"), 50_000)
	if err := os.WriteFile(tn.spool.Output(id), want, 0o600); err != nil {
		t.Fatal(err)
	}
	for uid, code := range map[uint32]api.Code{1000: api.OK, 0: api.OK, 1001: api.PermissionDenied} {
		got, err := read(uid)
		if api.CodeOf(err) != code || (err == nil) != bytes.Equal(got, want) {
			t.Errorf("uid %d: %d bytes, %v; want %v", uid, len(got), err, code)
		}
	}
	// No user can redirect it.
	if err := os.Remove(tn.spool.Output(id)); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", tn.spool.Output(id)); err != nil {
		t.Fatal(err)
	}
	if _, err := read(1000); err == nil {
		t.Error("a link was followed")
	}
}

// TestEventLogsCount: of two users the one whose ended step has a huge event log loses it when his
// next one ends.
func TestEventLogsCount(t *testing.T) {
	tn := fresh(t)
	other := tn.run(1001, request("exit", "0"))
	tn.wait(other)
	huge := tn.run(1000, request("wait"))
	tn.until(huge, step.Running)
	if err := os.Truncate(tn.spool.Events(huge), 1<<30); err != nil { // it has no such bytes
		t.Fatal(err)
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(huge)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(huge)
	tn.eventually("the end of its job", func() bool { return len(tn.doc().Jobs) == 0 })
	tn.wait(tn.run(1000, request("exit", "0")))
	if _, err := tn.store.Step(huge); err == nil {
		t.Error("the step is kept")
	}
	tn.eventually("the removal of its log", func() bool {
		_, err := os.Lstat(tn.spool.Events(huge))
		return errors.Is(err, os.ErrNotExist)
	})
	if _, err := tn.store.Step(other); err != nil {
		t.Errorf("another user's step: %v", err)
	}
	tn.idle()
}
