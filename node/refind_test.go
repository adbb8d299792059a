package node

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"stepd/api"
	"stepd/node/store"
	"stepd/step"
)

// TestStateLost: the steps of an allocation go on, without a step that leads them, until
// the last one ends.
func TestStateLost(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	c := newClient(t, 1000)
	job, err := tn.alloc(c, func(r *step.Request) { r.NTasks = 3 })
	if err != nil {
		t.Fatal(err)
	}
	tn.wait(tn.stepOf(job, 1000, "exit", "0"))
	a, b := tn.stepOf(job, 1000, "wait"), tn.stepOf(job, 1000, "wait")
	tn.until(a, step.Running)
	tn.until(b, step.Running)
	tn.stop()
	if err := errors.Join(os.Remove(filepath.Join(tn.spool.Run, "volatile.journal")), os.Remove(filepath.Join(tn.spool.Dir, store.DurableName))); err != nil {
		t.Fatal(err)
	}
	tn = start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: ref(a)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(a)
	if rec := tn.until(b, step.Running); rec.StepdPID == 0 || tn.reg.job(job) == nil {
		t.Errorf("the other one: %+v", rec)
	}
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: ref(b)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(b)
	tn.idle()
}
