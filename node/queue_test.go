package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

// queueNode is a node whose batch jobs are this process's own user's.
func (tn *testNode) batch(change func(*step.Request), argv string) step.ID {
	tn.t.Helper()
	req := batch(argv)
	if change != nil {
		change(&req)
	}
	return tn.run(uint32(os.Getuid()), req)
}

// waits waits until the job's reason begins with words.
func (tn *testNode) waits(id step.ID, words string) {
	tn.t.Helper()
	deadline := time.Now().Add(testTimeout)
	for {
		recs, err := tn.find(ref(id))
		if err != nil {
			tn.t.Fatal(err)
		}
		if recs[0].State == step.Pending && strings.HasPrefix(recs[0].Reason, words) {
			return
		}
		if time.Now().After(deadline) {
			tn.t.Fatalf("job %d is %s: %q, want %q", id.Job, recs[0].State, recs[0].Reason, words)
		}
		time.Sleep(time.Millisecond)
	}
}

func (tn *testNode) cancelJob(id step.ID) {
	tn.t.Helper()
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{Step: &api.StepRef{JobId: id.Job}}); err != nil {
		tn.t.Fatal(err)
	}
}

// TestQueue: batch jobs start in order when there is place, over a restart of noded, and
// say what they wait for until then.
func TestQueue(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	of := func(n int) func(*step.Request) { return func(r *step.Request) { r.NTasks = n } }
	first := tn.batch(of(3), "wait")
	tn.until(first, step.Running)
	second := tn.batch(of(2), "exit 0")
	third := tn.batch(of(1), "exit 0") // would fit
	tn.waits(second, "Resources: the step does not fit: it needs 2 CPUs on this node: of its 4 CPUs 1 are free")
	tn.waits(third, fmt.Sprintf("Priority: behind job %d", second.Job))
	recs, err := tn.list(false)
	if err != nil || len(recs) != 3 || recs[1].ID != second || recs[1].State != step.Pending {
		t.Errorf("listed: %v, %v", recs, err)
	}
	for _, call := range []func() error{
		func() error {
			_, err := tn.svc.Signal(as(0), &api.SignalRequest{Step: ref(second), Signal: 15})
			return err
		},
		func() error { _, err := tn.svc.Suspend(as(0), &api.StepRef{JobId: second.Job}); return err },
		func() error { _, err := tn.svc.Requeue(as(0), &api.StepRef{JobId: second.Job}); return err },
	} {
		if err := call(); err == nil {
			t.Error("a job that waits was told something")
		}
	}
	if _, err := tn.svc.Cancel(as(1500), &api.CancelRequest{Step: &api.StepRef{JobId: second.Job}}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("another's job: %v", err)
	}
	// It never fits, and spends no number.
	if _, err := tn.svc.Run(as(1000), &api.RunRequest{Request: marshal(t, func() step.Request { r := batch("x"); r.NTasks = 5; return r }())}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("5 CPUs: %v", err)
	}
	tn.stop()

	tn = start(t, dir, nil)
	defer tn.stop()
	tn.waits(third, "Priority")
	fourth := tn.batch(nil, "exit 0")
	tn.cancelJob(fourth)
	if rec := tn.wait(fourth); fourth.Job != third.Job+1 || rec.State != step.Cancelled {
		t.Errorf("cancelled: %+v", rec)
	}
	done := make(chan step.Record, 1)
	go func() { done <- tn.wait(second) }()
	tn.cancelJob(first)
	if rec := <-done; rec.State != step.Completed || rec.CPUs != "0-1" {
		t.Errorf("record %+v", rec)
	}
	tn.wait(third)
	tn.idle()
	if left, err := tn.store.queue(); err != nil || len(left) != 0 {
		t.Errorf("left in the queue: %v, %v", left, err)
	}
	if raw, err := tn.store.request(second.Job); err == nil {
		t.Errorf("%d bytes of a request are left", len(raw))
	}
}

// TestQueueHolds: a drained node starts none, nor does a job begin before its time.
func TestQueueHolds(t *testing.T) {
	tn := fresh(t)
	if _, err := tn.svc.Drain(as(0), &api.DrainRequest{Reason: "new disk"}); err != nil {
		t.Fatal(err)
	}
	id := tn.batch(nil, "exit 0")
	tn.waits(id, "node is drained: new disk")
	hour := time.Now().Add(time.Hour)
	never := tn.batch(func(r *step.Request) { r.Begin = &hour }, "exit 0")
	tn.waits(never, "BeginTime: not before ")
	tn.cancelJob(never)
	begin := time.Now().Add(100 * time.Millisecond)
	later := tn.batch(func(r *step.Request) { r.Begin = &begin }, "exit 0")
	if _, err := tn.svc.Resume(as(0), &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	tn.wait(id)
	if rec := tn.wait(later); rec.State != step.Completed || rec.Ended.Before(begin) {
		t.Errorf("record %+v", rec)
	}
}

// TestArray: a job for each task, so many at a time, found by the array's number.
func TestArray(t *testing.T) {
	tn := fresh(t)
	uid := uint32(os.Getuid())
	first := tn.batch(func(r *step.Request) { r.Array = "2-8:2%2" }, "wait")
	task := func(n uint32) *api.StepRef { return &api.StepRef{JobId: first.Job, ArrayTask: &n} }
	var ids []step.ID
	for i, n := range []uint32{2, 4, 6, 8} {
		reply, err := tn.svc.Show(as(uid), task(n))
		if err != nil || len(reply.Step) != 1 {
			t.Fatal(err)
		}
		id := step.ID{Job: first.Job + uint32(i), Step: step.BatchStep}
		recs, err := tn.find(ref(id))
		if err != nil {
			t.Fatal(err)
		}
		want := step.ArrayTask{Job: first.Job, Task: n, Count: 4, Min: 2, Max: 8, Step: 2}
		if a := recs[0].Array; a == nil || *a != want {
			t.Errorf("array %+v, want %+v", a, want)
		}
		ids = append(ids, id)
	}
	tn.until(ids[0], step.Running)
	tn.until(ids[1], step.Running)
	tn.waits(ids[2], "JobArrayTaskLimit: 2 of its array run")
	if _, err := tn.svc.Cancel(as(uid), &api.CancelRequest{Step: task(4)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(ids[1])
	tn.until(ids[2], step.Running)
	if _, err := tn.svc.Show(as(uid), task(3)); status.Code(err) != codes.NotFound {
		t.Errorf("task 3: %v", err)
	}
	tn.cancelJob(first) // all of them
	for _, id := range ids {
		if rec := tn.wait(id); rec.State != step.Cancelled {
			t.Errorf("record %+v", rec)
		}
	}
	tn.idle()
	for _, spec := range []string{"0-1001", "x", "0-4294967295"} {
		req := batch("x")
		req.Array = spec
		if _, err := tn.svc.Run(as(1000), &api.RunRequest{Request: marshal(t, req)}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", spec, err)
		}
	}
}

// TestRequeueHeld: a job that is put back held waits until it is let go of, over a restart
// of noded, too.
func TestRequeueHeld(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	defer func() { tn.stop() }()
	uid := uint32(os.Getuid())
	requeue := func(who uint32, in *api.HoldRequest, want codes.Code, words string) {
		t.Helper()
		in.Requeue = true
		if _, err := tn.svc.Hold(as(who), in); status.Code(err) != want || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("%v by %d: %v, want %v with %q", in, who, err, want, words)
		}
	}
	no := false
	never := tn.batch(func(r *step.Request) { r.Requeue = &no }, "wait")
	tn.until(never, step.Running)
	requeue(uid, &api.HoldRequest{Job: &api.StepRef{JobId: never.Job}}, codes.FailedPrecondition, "--no-requeue")
	tn.cancelJob(never)
	tn.wait(never)

	id := tn.batch(nil, "wait")
	job := &api.StepRef{JobId: id.Job}
	tn.until(id, step.Running)
	requeue(1500, &api.HoldRequest{Job: job}, codes.PermissionDenied, "")
	requeue(uid, &api.HoldRequest{Job: job, Release: true}, codes.InvalidArgument, "exclude each other")
	requeue(uid, &api.HoldRequest{Job: &api.StepRef{JobId: 99}}, codes.NotFound, "")
	requeue(uid, &api.HoldRequest{Job: job}, codes.OK, "")
	tn.waits(id, "JobHeldUser")
	requeue(uid, &api.HoldRequest{Job: job}, codes.FailedPrecondition, "no batch job that runs")
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
	if _, err := tn.svc.Requeue(as(uid), &api.StepRef{JobId: id.Job}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "--no-requeue") {
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

// TestQueueUserSteps: a job whose user has all the steps that it may have waits for their
// end, and holds up nobody else's.
func TestQueueUserSteps(t *testing.T) {
	tn := start(t, t.TempDir(), func(c *Config) { c.PerUser.Steps = 1 })
	defer tn.stop()
	uid := uint32(os.Getuid())
	if uid == 0 {
		uid = 1000
	}
	submit := func(uid uint32, array, script string) step.ID {
		req := batch(script)
		req.UID, req.Array = &uid, array
		return tn.run(0, req)
	}
	first := submit(uid, "0-2", "wait")
	second := step.ID{Job: first.Job + 1, Step: step.BatchStep}
	third := step.ID{Job: first.Job + 2, Step: step.BatchStep}
	tn.until(first, step.Running)
	for _, id := range []step.ID{second, third} {
		tn.waits(id, fmt.Sprintf("UserStepsMax: uid %d has 1 steps", uid))
	}
	if n := tn.Figures().Steps[step.Pending]; n != 2 {
		t.Errorf("%d steps are counted as PENDING", n)
	}
	other := submit(1001, "", "exit 0")
	if rec := tn.wait(other); rec.State != step.Completed {
		t.Errorf("another user's: %+v", rec)
	}
	for _, id := range []step.ID{first, second} {
		zero := id.Job - first.Job
		if _, err := tn.svc.Cancel(as(uid), &api.CancelRequest{Step: &api.StepRef{JobId: first.Job, ArrayTask: &zero}}); err != nil {
			t.Fatal(err)
		}
		tn.wait(id)
		tn.until(step.ID{Job: id.Job + 1, Step: step.BatchStep}, step.Running)
	}
	tn.cancelJob(first)
	tn.wait(third)
	tn.idle()
}

// TestQueueSpoolFails: what noded cannot store fails no job.
func TestQueueSpoolFails(t *testing.T) {
	tn := fresh(t)
	hour := time.Now().Add(time.Hour) // the queue leaves it alone
	id := tn.batch(func(r *step.Request) { r.Begin = &hour }, "exit 0")
	tn.waits(id, "BeginTime")
	q := tn.queue.get(id.Job)
	writable := tn.readOnly()
	err := q.start()
	writable()
	if busy, ok := errors.AsType[errBusy](err); !ok || !busy.all || !busy.retry {
		t.Errorf("start: %v", err)
	}
	tn.cancelJob(id)
	if rec := tn.wait(id); rec.State != step.Cancelled {
		t.Errorf("record %+v", rec)
	}
	tn.idle()
}

// readOnly lets nothing be stored until writable is called. Nothing else may go on.
func (tn *testNode) readOnly() (writable func()) {
	tn.t.Helper()
	path := tn.store.db.Path()
	reopen := func(readOnly bool) {
		if err := tn.store.db.Close(); err != nil {
			tn.t.Fatal(err)
		}
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: readOnly, Timeout: time.Second})
		if err != nil {
			tn.t.Fatal(err)
		}
		tn.store.db = db
	}
	reopen(true)
	return func() { reopen(false) }
}

// TestQueueBytes: the requests of a user's jobs are bounded, one for an array.
func TestQueueBytes(t *testing.T) {
	dir := t.TempDir()
	few := func(c *Config) { c.PerUser.RequestBytes = 5000 }
	tn := start(t, dir, few)
	if _, err := tn.svc.Drain(as(0), &api.DrainRequest{Reason: "full"}); err != nil {
		t.Fatal(err)
	}
	uid := uint32(1000)
	submit := func() error {
		req := batch("exit 0 #" + strings.Repeat("x", 1000)) // base64: a third more
		req.Array = "0-9"
		_, err := tn.svc.Run(as(uid), &api.RunRequest{Request: marshal(t, req)})
		return err
	}
	all := make(chan error)
	for range 8 {
		go func() { all <- submit() }()
	}
	refused := 0
	for range 8 {
		if err := <-all; status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "UserRequestBytes") {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	if refused != 6 && refused != 5 {
		t.Errorf("%d of 8 refused", refused)
	}
	tn.stop()
	tn = start(t, dir, few)
	defer tn.stop()
	if err := submit(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("after a restart: %v", err)
	}
	uid = 1001
	if err := submit(); err != nil {
		t.Errorf("another user: %v", err)
	}
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
	if _, err := tn.svc.Cancel(as(1500), &api.CancelRequest{Step: &api.StepRef{JobId: id.Job}}); status.Code(err) != codes.PermissionDenied {
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
	if _, err := tn.svc.Requeue(as(1500), &api.StepRef{JobId: first.Job}); status.Code(err) != codes.PermissionDenied {
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
