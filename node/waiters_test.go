package node

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"stepd/api"
	"stepd/step"
)

// TestWaitersAreBounded: steps that wait for their share of a job count as their user's
// steps, and go on waiting while the job is suspended.
func TestWaitersAreBounded(t *testing.T) {
	r := newRegistry([]int{0, 1}, Memory{}, nil)
	r.perUser.Steps = 4
	job := new(uint32)
	*job = 1
	a, err := admit(r, 1000, func(r *step.Request) { r.NTasks = 2 })
	if err != nil {
		t.Fatal(err)
	}
	r.newJob(a, jobRecord{ID: 1, UID: 1000, Origin: step.OriginAlloc})
	r.openJob(a.job)
	inner := func(r *step.Request) { r.Job, r.NTasks = job, 2 }
	first, err := admit(r, 1000, inner)
	if err != nil {
		t.Fatal(err)
	}
	req := request("x")
	inner(&req)
	var line []*waiter
	for range 2 {
		w := new(waiter)
		for range 3 { // it is counted once
			if _, freed, err := r.tryAdmit(&req, 1000, false, w); freed == nil || err == nil {
				t.Fatalf("a step that has to wait: %v", err)
			}
		}
		line = append(line, w)
	}
	if _, freed, err := r.tryAdmit(&req, 1000, false, new(waiter)); freed != nil || api.CodeOf(err) != api.ResourceExhausted {
		t.Errorf("beyond the limit: %v", err)
	}
	r.setSuspended(a.job, &suspendRecord{Since: time.Now()})
	r.abandon(first)
	_, freed, err := r.tryAdmit(&req, 1000, false, line[0])
	if freed == nil || err == nil {
		t.Fatalf("while the job is suspended: %v", err)
	}
	if _, _, err := r.tryAdmit(&req, 1000, false, nil); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("without waiting: %v", err)
	}
	r.setSuspended(a.job, nil)
	select {
	case <-freed:
	default:
		t.Error("nobody tells of the resumption")
	}
	got, _, err := r.tryAdmit(&req, 1000, false, line[0])
	if err != nil || r.byUser[1000] != 3 || len(a.job.waiters) != 1 {
		t.Fatalf("%v; %d steps, %d wait", err, r.byUser[1000], len(a.job.waiters))
	}
	r.leaveQueue(line[0])
	r.leaveQueue(line[1])
	r.abandon(got)
	if r.byUser[1000] != 1 || len(a.job.waiters) != 0 {
		t.Errorf("at the end: %d steps, %d wait", r.byUser[1000], len(a.job.waiters))
	}
}

// TestWaitersBytes: what waits for its share is counted with its request.
func TestWaitersBytes(t *testing.T) {
	tn := fresh(t)
	c := newClient(t, 1000)
	job, err := tn.alloc(c, func(r *step.Request) { r.NTasks = 1 })
	if err != nil {
		t.Fatal(err)
	}
	req := request("wait")
	req.Job = &job
	tn.until(tn.run(1000, req), step.Running)
	forever := step.WaitForever
	req.ImmediateS = &forever
	in := &api.RunRequest{Request: marshal(t, req)}
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan error, 1)
	go func() {
		_, err := tn.svc.Reserve(ctx, in)
		done <- err
	}()
	held := func() int {
		tn.reg.mu.Lock()
		defer tn.reg.mu.Unlock()
		return tn.reg.waiting[1000]
	}
	for held() == 0 {
		time.Sleep(time.Millisecond)
	}
	tn.reg.mu.Lock()
	tn.reg.perUser.RequestBytes = len(in.Request) * 3 / 2
	tn.reg.mu.Unlock()
	if _, err := tn.svc.Reserve(c.ctx, in); api.CodeOf(err) != api.ResourceExhausted {
		t.Errorf("a second one: %v", err)
	}
	cancel()
	if err := <-done; api.CodeOf(err) != api.Canceled {
		t.Errorf("the first one: %v", err)
	}
	if n := held(); n != 0 {
		t.Errorf("%d bytes are left", n)
	}
}

// TestArrayTask: an array's task is found without its neighbours, and nothing is looked at
// beyond the array.
func TestArrayTask(t *testing.T) {
	s := reopen(t, filepath.Join(t.TempDir(), "state.db"), 1000)
	put := func(job, id uint32, array *step.ArrayTask) {
		t.Helper()
		if err := s.put(&step.Record{ID: step.ID{Job: job, Step: id}, Array: array}); err != nil {
			t.Fatal(err)
		}
	}
	// Of array 10, with the tasks 1, 3, 5 and 7, the first is forgotten.
	for i := uint32(1); i < 4; i++ {
		put(10+i, 0, nil)
		put(10+i, step.BatchStep, &step.ArrayTask{Job: 10, Task: 2*i + 1})
		put(10+i, step.ExternStep, nil)
	}
	put(14, step.BatchStep, &step.ArrayTask{Job: 14, Task: 9})
	for task, want := range map[uint32]uint32{1: 0, 3: 11, 4: 0, 5: 12, 7: 13, 9: 0, 1<<32 - 1: 0} {
		if job, err := s.arrayTask(t.Context(), 10, task); err != nil || job != want {
			t.Errorf("task %d: job %d, %v; want %d", task, job, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if job, err := s.arrayTask(ctx, 10, 7); job != 0 || err != nil {
		t.Errorf("of a client that is gone: %d, %v", job, err)
	}
}
