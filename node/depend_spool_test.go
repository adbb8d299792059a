package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
)

// fifoJob is a batch job of one array task, or of none, which runs until end is called.
func (tn *testNode) fifoJob(array string) (id step.ID, end func(code string)) {
	tn.t.Helper()
	fifo := filepath.Join(tn.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		tn.t.Fatal(err)
	}
	id = tn.batch(func(r *step.Request) { r.Array = array }, "fifo "+fifo)
	tn.until(id, step.Running)
	return id, func(code string) {
		tn.t.Helper()
		if err := os.WriteFile(fifo, []byte(code), 0); err != nil {
			tn.t.Fatal(err)
		}
		tn.wait(id)
	}
}

// noResults lets no result be stored until again is called. What is stored can be read.
func (tn *testNode) noResults() (again func()) {
	tn.t.Helper()
	change := func(f func(meta *bbolt.Bucket) error) {
		tn.t.Helper()
		if err := tn.store.db.Update(func(tx *bbolt.Tx) error { return f(tx.Bucket(bucketMeta)) }); err != nil {
			tn.t.Fatal(err)
		}
	}
	var ended uint32
	change(func(meta *bbolt.Bucket) error {
		ended = getNumber(meta, keyEnded)
		if err := meta.Delete(keyEnded); err != nil {
			return err
		}
		_, err := meta.CreateBucket(keyEnded) // a number cannot be stored in its place
		return err
	})
	return func() {
		tn.t.Helper()
		change(func(meta *bbolt.Bucket) error {
			if err := meta.DeleteBucket(keyEnded); err != nil {
				return err
			}
			return putNumber(meta, keyEnded, ended)
		})
	}
}

// TestDependencySpoolStops: what the spool does not tell is no end of a job. Who waits for
// one that ends meanwhile hears how it has ended.
func TestDependencySpoolStops(t *testing.T) {
	tn := fresh(t)
	first, end := tn.fifoJob("")
	earlier := tn.batch(nil, "exit 0")
	tn.completes(earlier)
	ok, notOK := tn.after("exit 0", "afterok:%d", first.Job), tn.after("exit 0", "afternotok:%d", first.Job)
	kill := true
	killed := tn.batch(func(r *step.Request) { r.Dependency, r.KillInvalidDep = fmt.Sprintf("afterok:%d", first.Job), &kill }, "exit 0")
	for _, id := range []step.ID{ok, notOK, killed} {
		tn.waits(id, "Dependency: ")
	}
	hung, err := tn.store.db.Begin(true) // a write that does not end
	if err != nil {
		t.Fatal(err)
	}
	tn.store.gate.setPatience(100 * time.Millisecond)
	if err := tn.store.setCrashes(nil); err == nil {
		t.Error("the spool answers")
	}
	req := batch("exit 0")
	req.Dependency = fmt.Sprintf("afterok:%d", earlier.Job)
	if _, err := tn.svc.Run(as(uint32(os.Getuid())), &api.RunRequest{Request: marshal(t, req)}); api.CodeOf(err) != api.Internal || !strings.Contains(err.Error(), "has not answered for") {
		t.Errorf("a job that waits for one which there is: %v", err)
	}
	if e := tn.batchEnd(earlier.Job); e.over || e.err == nil {
		t.Errorf("of an earlier job: %+v", e)
	}
	end("0")
	tn.eventually("the job's end", func() bool { return tn.queue.get(first.Job) == nil })
	tn.waits(notOK, fmt.Sprintf("DependencyNeverSatisfied: afternotok:%d: job %d: COMPLETED", first.Job, first.Job))
	tn.store.gate.setPatience(spoolPatience)
	if err := hung.Rollback(); err != nil {
		t.Fatal(err)
	}
	tn.eventually("a spool that answers", func() bool { return tn.store.gate.dead() == nil })
	tn.queue.kick()
	tn.completes(ok, killed)
	tn.waits(notOK, "DependencyNeverSatisfied")
}

// TestDependencyUnreadable: a record that cannot be read is no end, either.
func TestDependencyUnreadable(t *testing.T) {
	tn := fresh(t)
	first := tn.batch(nil, "exit 0")
	tn.completes(first)
	later := tn.after("exit 0", "after:%d+1", first.Job)
	tn.waits(later, fmt.Sprintf("Dependency: after:%d+1", first.Job))
	if err := tn.store.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketSteps).Put(stepKey(first), []byte("{")) }); err != nil {
		t.Fatal(err)
	}
	tn.queue.kick()
	tn.waits(later, fmt.Sprintf("Dependency: after:%d+1 (cannot read step %s", first.Job, first))
}

// TestDependencyUnstored: a job has ended, and well, whether that can be stored or not.
func TestDependencyUnstored(t *testing.T) {
	tn := fresh(t)
	array, end := tn.fifoJob("0")
	any, ok, notOK := tn.after("exit 0", "afterany:%d_0", array.Job), tn.after("exit 0", "afterok:%d", array.Job), tn.after("exit 0", "afternotok:%d", array.Job)
	tn.waits(notOK, "Dependency: ")
	again := tn.noResults()
	end("0")
	tn.completes(any, ok)
	tn.waits(notOK, "DependencyNeverSatisfied: afternotok")
	again()
	tn.eventually("the result", func() bool {
		rec, err := tn.store.step(array)
		return err == nil && rec.State == step.Completed
	})
}
