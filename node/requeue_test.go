package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"stepd/api"
	"stepd/step"
)

// TestRequeueHeld: a job that is put back held waits until it is let go of, over a restart
// of noded, too.
func TestRequeueHeld(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	defer func() { tn.stop() }()
	uid := uint32(os.Getuid())
	requeue := func(who uint32, in *api.HoldRequest, want api.Code, words string) {
		t.Helper()
		in.Requeue = true
		if _, err := tn.svc.Hold(as(who), in); api.CodeOf(err) != want || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%v by %d: %v, want %v with %q", in, who, err, want, words)
		}
	}
	no := false
	never := tn.batch(func(r *step.Request) { r.Requeue = &no }, "wait")
	tn.until(never, step.Running)
	requeue(uid, &api.HoldRequest{Job: &api.StepRef{JobId: never.Job}}, api.FailedPrecondition, "--no-requeue")
	tn.cancelJob(never)
	tn.wait(never)

	id := tn.batch(nil, "wait")
	job := &api.StepRef{JobId: id.Job}
	tn.until(id, step.Running)
	requeue(1500, &api.HoldRequest{Job: job}, api.PermissionDenied, "")
	requeue(uid, &api.HoldRequest{Job: job, Release: true}, api.InvalidArgument, "exclude each other")
	requeue(uid, &api.HoldRequest{Job: &api.StepRef{JobId: 99}}, api.NotFound, "")
	requeue(uid, &api.HoldRequest{Job: job}, api.OK, "")
	tn.waits(id, "JobHeldUser")
	requeue(uid, &api.HoldRequest{Job: job}, api.FailedPrecondition, "no batch job that runs")
	tn.stop()

	tn = start(t, dir, nil)
	tn.waits(id, "JobHeldUser")
	if _, err := tn.svc.Hold(as(uid), &api.HoldRequest{Job: job, Release: true}); err != nil {
		t.Fatal(err)
	}
	if rec := tn.until(id, step.Running); rec.Restarts != 1 {
		t.Errorf("record %+v", rec)
	}
	tn.cancelJob(id)
	if rec := tn.wait(id); rec.State != step.Cancelled || rec.Restarts != 1 {
		t.Errorf("record %+v", rec)
	}
	tn.idle()
}

// TestRequeue: under its number, with its steps' numbers going on; who waits for it waits for
// its last end.
func TestRequeue(t *testing.T) {
	tn := fresh(t)
	uid := uint32(os.Getuid())
	id := tn.batch(nil, "wait")
	tn.until(id, step.Running)
	inner := tn.stepOf(id.Job, uid, "wait")
	tn.until(inner, step.Running)
	ctx, cancel := context.WithTimeout(as(uid), testTimeout)
	defer cancel()
	over := make(chan error, 1)
	go func() {
		_, err := tn.svc.Wait(ctx, ref(id))
		over <- err
	}()
	if _, err := tn.svc.Requeue(as(uid), &api.StepRef{JobId: id.Job}); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(testTimeout)
	for {
		recs, err := tn.find(ref(id))
		if err != nil {
			t.Fatal(err)
		}
		if recs[0].State == step.Running && recs[0].Restarts == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", recs[0])
		}
		time.Sleep(time.Millisecond)
	}
	if next := tn.stepOf(id.Job, uid, "exit", "0"); next.Step != inner.Step+1 {
		t.Errorf("the next step is %s", next)
	} else {
		tn.wait(next)
	}
	select {
	case err := <-over:
		t.Errorf("who waits was told of the first end: %v", err)
	default:
	}
	tn.cancelJob(id)
	if err := <-over; err != nil {
		t.Error(err)
	}
	tn.idle()

	no := false
	id = tn.batch(func(r *step.Request) { r.Requeue = &no }, "wait")
	tn.until(id, step.Running)
	if _, err := tn.svc.Requeue(as(uid), &api.StepRef{JobId: id.Job}); api.CodeOf(err) != api.FailedPrecondition || !strings.Contains(err.Error(), "--no-requeue") {
		t.Errorf("--no-requeue: %v", err)
	}
	tn.cancelJob(id)
	tn.wait(id)
	tn.idle()
}

// TestBatchOverReboot: a batch job that ran when the host went down runs again, whether its
// stepd could say so or not, unless it is not to.
func TestBatchOverReboot(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	told, untold, no := tn.batch(nil, "wait"), tn.batch(nil, "wait"), false
	never := tn.batch(func(r *step.Request) { r.Requeue = &no }, "wait")
	stayed := tn.batch(nil, "wait")
	all := []step.ID{told, untold, never, stayed}
	for _, id := range all {
		tn.until(id, step.Running)
	}
	tn.stop()
	killLeft(t, dir)

	tn = start(t, dir, func(c *Config) { // as the next boot finds it
		layout := layout{run: c.RunDir, spool: c.SpoolDir}
		st, err := openStore(layout.state(), c.MinJobAge, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range all {
			rec, err := st.step(id)
			if err == nil && id != stayed {
				rec.BootID = "another"
				err = st.put(rec)
			}
			if err == nil && id != untold {
				deadRecord(rec, "stepd got SIGTERM: the host goes down", step.NodeFail, time.Now())
				err = os.WriteFile(layout.result(id), marshal(t, rec), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := st.close(); err != nil {
			t.Fatal(err)
		}
	})
	if rec := tn.wait(never); rec.State != step.NodeFail || rec.Restarts != 0 {
		t.Errorf("the one that is not to run again: %+v", rec)
	}
	for _, id := range []step.ID{told, untold} {
		if rec := tn.until(id, step.Running); rec.Restarts != 1 {
			t.Errorf("job %d: %+v", id.Job, rec)
		}
		tn.cancelJob(id)
		tn.wait(id)
	}
	// The host has not gone down: it is given time to.
	tn.waits(stayed, "BeginTime: ")
	tn.stop()
	tn = start(t, dir, nil)
	tn.waits(stayed, "BeginTime: ")
	tn.stop()
	tn = start(t, dir, func(c *Config) {
		st, err := openStore(filepath.Join(c.SpoolDir, "state.db"), c.MinJobAge, 1000)
		if err != nil {
			t.Fatal(err)
		}
		rec, err := st.step(stayed)
		if err == nil {
			rec.BootID = "another"
			err = st.put(rec)
		}
		if err = errors.Join(err, st.close()); err != nil {
			t.Fatal(err)
		}
	})
	tn.until(stayed, step.Running)
	tn.cancelJob(stayed)
	tn.wait(stayed)
	tn.idle()
}

// slowContainers hold up the end of a job.
type slowContainers struct {
	*fakeContainers
	at, on chan struct{}
}

func (c slowContainers) Delete(ctx context.Context, job uint32) error {
	c.at <- struct{}{}
	<-c.on
	return c.fakeContainers.Delete(ctx, job)
}

// TestCancelRequeued: what is cancelled does not run again, though it was to, whatever of it
// is left.
func TestCancelRequeued(t *testing.T) {
	slow := slowContainers{at: make(chan struct{}), on: make(chan struct{})}
	tn := start(t, t.TempDir(), func(c *Config) {
		slow.fakeContainers = c.Containers.(*fakeContainers)
		c.Containers = slow
	})
	defer tn.stop()
	uid := uint32(os.Getuid())
	id := tn.batch(nil, "wait")
	tn.until(id, step.Running)
	if _, err := tn.svc.Requeue(as(uid), &api.StepRef{JobId: id.Job}); err != nil {
		t.Fatal(err)
	}
	<-slow.at // no step of it is left
	if _, err := tn.svc.Cancel(as(1500), &api.CancelRequest{Step: &api.StepRef{JobId: id.Job}}); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("another's job: %v", err)
	}
	tn.cancelJob(id)
	q := tn.queue.get(id.Job)
	tn.requeueLost(id.Job) // nor does the node's end bring it back
	if err := tn.queue.setAgain(q, ""); err != nil || q.now().Again {
		t.Errorf("%+v, %v", q.now(), err)
	}
	slow.on <- struct{}{}
	if rec := tn.wait(id); rec.State != step.Cancelled || rec.Restarts != 0 {
		t.Errorf("record %+v", rec)
	}
	tn.idle()
	if err := tn.queue.setAgain(q, ""); err != nil {
		t.Error(err)
	}
	if left, err := tn.store.queue(); err != nil || len(left) != 0 {
		t.Errorf("left in the queue: %v, %v", left, err)
	}

	// An array whose first job's record is forgotten.
	first := tn.batch(func(r *step.Request) { r.Array = "0-1" }, "wait")
	second := step.ID{Job: first.Job + 1, Step: step.BatchStep}
	tn.until(second, step.Running)
	zero := uint32(0)
	if _, err := tn.svc.Cancel(as(uid), &api.CancelRequest{Step: &api.StepRef{JobId: first.Job, ArrayTask: &zero}}); err != nil {
		t.Fatal(err)
	}
	<-slow.at
	slow.on <- struct{}{}
	tn.wait(first)
	err := tn.store.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketSteps).Delete(stepKey(first)) })
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tn.svc.Requeue(as(1500), &api.StepRef{JobId: first.Job}); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("another's array: %v", err)
	}
	if _, err := tn.svc.Requeue(as(uid), &api.StepRef{JobId: first.Job}); err != nil {
		t.Error(err)
	}
	<-slow.at
	tn.cancelJob(first)
	slow.on <- struct{}{}
	if rec := tn.wait(second); rec.State != step.Cancelled || rec.Restarts != 0 {
		t.Errorf("record %+v", rec)
	}
	tn.idle()
}

// TestPutBack: the extern step's number is free for the next run, and a result of the last
// run that comes late is dropped.
func TestPutBack(t *testing.T) {
	tn := fresh(t)
	uid := uint32(os.Getuid())
	id := tn.batch(nil, "wait")
	tn.until(id, step.Running)
	last := tn.reg.follower(id).record()
	extern := step.Record{ID: step.ID{Job: id.Job, Step: step.ExternStep}, State: step.Completed, Submitted: time.Now()}
	if err := tn.store.newStepAs(extern.ID, id.Job, &extern); err != nil {
		t.Fatal(err)
	}
	if _, err := tn.store.finish(&extern, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := tn.store.newStepAs(extern.ID, id.Job, &step.Record{ID: extern.ID}); err == nil {
		t.Error("a second extern step in one run")
	}
	if _, err := tn.svc.Requeue(as(uid), &api.StepRef{JobId: id.Job}); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(testTimeout); tn.until(id, step.Running).Restarts != 1; {
		if time.Now().After(deadline) {
			t.Fatal("it does not run again")
		}
		time.Sleep(time.Millisecond)
	}
	late := func(rec *step.Record) {
		t.Helper()
		if _, err := tn.store.finishLate(rec, time.Now()); !errors.Is(err, errSuperseded) {
			t.Errorf("step %s: %v", rec.ID, err)
		}
	}
	late(&extern)
	if err := tn.store.newStepAs(extern.ID, id.Job, &step.Record{ID: extern.ID, Submitted: time.Now()}); err != nil {
		t.Error(err)
	}
	late(&extern)
	last.State = step.Cancelled
	late(last)
	tn.cancelJob(id)
	if rec := tn.wait(id); rec.Restarts != 1 {
		t.Errorf("record %+v", rec)
	}
	tn.idle()
	late(last)
}
