package node

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"stepd/api"
	"stepd/step"
)

// tooLate calls change, whose commit comes when nobody waits for it any more, and returns
// when the spool answers again.
func (tn *testNode) tooLate(change func() error) {
	tn.t.Helper()
	answer := make(chan struct{})
	slow := func(f func(*bbolt.Tx) error) error {
		err := tn.store.db.Update(f)
		<-answer
		return err
	}
	tn.store.gate.setPatience(200 * time.Millisecond)
	tn.store.slow.Store(&slow)
	if change() == nil {
		tn.t.Error("it was not refused, although the spool does not answer")
	}
	tn.store.gate.setPatience(spoolPatience)
	tn.store.slow.Store(nil)
	close(answer)
	tn.eventually("a spool that answers", func() bool { return tn.store.gate.dead() == nil })
}

// stored is what the store has of a batch job.
func (tn *testNode) stored(id step.ID) queuedRecord {
	tn.t.Helper()
	all, err := tn.store.queue()
	if err != nil {
		tn.t.Fatal(err)
	}
	for _, q := range all {
		if q.Job == id.Job {
			return *q
		}
	}
	tn.t.Fatalf("job %d is not in the queue", id.Job)
	return queuedRecord{}
}

// TestHoldTooLate: what was refused, since the spool did not answer, does not come true
// when it does.
func TestHoldTooLate(t *testing.T) {
	tn := fresh(t)
	hour := time.Now().Add(time.Hour)
	waits, runs := tn.batch(func(r *step.Request) { r.Begin = &hour }, "exit 0"), tn.batch(nil, "wait")
	tn.until(runs, step.Running)
	tn.waits(waits, "BeginTime")
	tn.tooLate(func() error {
		_, err := tn.svc.Hold(as(uint32(os.Getuid())), &api.HoldRequest{Job: &api.StepRef{JobId: waits.Job}})
		if err != nil && (api.CodeOf(err) != api.Internal || !strings.Contains(err.Error(), "has not answered for")) {
			t.Errorf("hold: %v", err)
		}
		return err
	})
	if was, is := tn.queue.get(waits.Job).now().Held, tn.stored(waits).Held; is != was {
		t.Errorf("held by %q, and in the store by %q", was, is)
	}
	q := tn.queue.get(runs.Job)
	tn.tooLate(func() error {
		tn.queue.change.Lock()
		defer tn.queue.change.Unlock()
		rec := q.now()
		rec.Again = true
		err := tn.queue.set(q, rec)
		if err != nil && !errors.As(err, new(errSpool)) {
			t.Errorf("run again: %v", err)
		}
		return err
	})
	if was, is := q.now().Again, tn.stored(runs).Again; is != was {
		t.Errorf("to run again: %v, and in the store %v", was, is)
	}
}

// TestDependencyToldMeanwhile: what comes while the queue stores what jobs wait for is
// stored the next time.
func TestDependencyToldMeanwhile(t *testing.T) {
	tn := fresh(t)
	array := tn.batch(func(r *step.Request) { r.Array, r.Hold = "0-1", true }, "exit 0")
	id := tn.after("exit 0", "afterok:%d", array.Job)
	tn.waits(id, "Dependency")
	q := tn.queue.get(id.Job)
	hung, err := tn.store.db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	q.setDepends(q.now().Depends)
	done := make(chan error, 1)
	go func() { done <- tn.queue.storeDepends() }()
	tn.eventually("a write", func() bool {
		if !tn.queue.change.TryLock() {
			return true
		}
		tn.queue.change.Unlock()
		return false
	})
	time.Sleep(20 * time.Millisecond) // its list is made by then; if not, this is the usual case
	tn.queue.tellFailed(&step.ArrayTask{Job: array.Job}, step.Failed)
	if err := hung.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := tn.queue.storeDepends(); err != nil {
		t.Fatal(err)
	}
	if d := tn.stored(id).Depends; len(d) != 1 || !d[0].Failed {
		t.Errorf("in the store: %+v", d)
	}
}
