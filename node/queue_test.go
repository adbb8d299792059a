package node

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

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
	if _, err := tn.svc.Cancel(as(1500), &api.CancelRequest{Step: &api.StepRef{JobId: second.Job}}); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("another's job: %v", err)
	}
	// It never fits, and spends no number.
	if _, err := tn.svc.Run(as(1000), &api.RunRequest{Request: marshal(t, func() step.Request { r := batch("x"); r.NTasks = 5; return r }())}); api.CodeOf(err) != api.ResourceExhausted {
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
	if _, err := tn.svc.Show(as(uid), task(3)); api.CodeOf(err) != api.NotFound {
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
		if _, err := tn.svc.Run(as(1000), &api.RunRequest{Request: marshal(t, req)}); api.CodeOf(err) != api.InvalidArgument {
			t.Errorf("%q: %v", spec, err)
		}
	}
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
		if err := <-all; api.CodeOf(err) == api.ResourceExhausted && strings.Contains(err.Error(), "UserRequestBytes") {
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
	if err := submit(); api.CodeOf(err) != api.ResourceExhausted {
		t.Errorf("after a restart: %v", err)
	}
	uid = 1001
	if err := submit(); err != nil {
		t.Errorf("another user: %v", err)
	}
}
