package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
)

// stopSpool makes a node's state hang, until the function that it returns is called.
func (tn *testNode) stopSpool() (goOn func()) {
	tn.t.Helper()
	hung, err := tn.store.db.Begin(true) // a write that does not end
	if err != nil {
		tn.t.Fatal(err)
	}
	tn.store.gate.setPatience(100 * time.Millisecond)
	return func() {
		tn.t.Helper()
		tn.store.gate.setPatience(spoolPatience)
		if err := hung.Rollback(); err != nil {
			tn.t.Fatal(err)
		}
	}
}

// TestStoredLater: what has ended, or was found, while nothing could be stored is stored
// when it can be.
func TestStoredLater(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	first, batch := tn.run(1000, request("fifo", fifo)), tn.batch("wait")
	for _, id := range []step.ID{first, batch} {
		tn.until(id, step.Running)
	}
	held := step.Record{ID: step.ID{Job: 77}, BootID: tn.boot, Survivors: []step.Survivor{{PID: 1}}, SurvivorsTotal: 1}
	tn.hold(&held)
	batchStep := tn.reg.follower(batch)
	goOn := tn.stopSpool()
	if err := os.WriteFile(fifo, []byte("9"), 0); err != nil {
		t.Fatal(err)
	}
	tn.wait(first)
	if err := batchStep.cancel(as(0), "it is over"); err != nil {
		t.Fatal(err)
	}
	<-batchStep.ended
	<-batchStep.job.ended
	tn.release(tn.held.steps[held.ID])
	if _, err := tn.svc.Drain(as(0), &api.DrainRequest{Reason: "refused"}); err == nil {
		t.Error("a drain is stored")
	}
	tn.drainSelf("found")
	goOn()
	tn.eventually("the ends of the jobs", func() bool {
		jobs, err := tn.store.jobs()
		return err == nil && len(jobs) == 0
	})
	tn.eventually("the results", func() bool {
		own, err := tn.store.step(first)
		other, berr := tn.store.step(batch)
		return err == nil && berr == nil && own.State.Final() && other.State == step.Cancelled
	})
	tn.eventually("what is held", func() bool {
		left, err := tn.store.held()
		return err == nil && len(left) == 0
	})
	tn.eventually("the drain", func() bool {
		d, err := tn.store.drain()
		return err == nil && d == drainRecord{Drained: true, Reason: "found"}
	})
	if _, err := os.Stat(tn.files.script(batch.Job)); err == nil {
		t.Error("the script is left")
	}
}
