package node

import (
	"context"
	"testing"
	"time"

	"stepd/api"
	"stepd/node/selection"
	"stepd/node/state"
	"stepd/srunopt"
	"stepd/step"
)

// patient is a request of user 1000's that waits for its place.
func patient(r *registry, req *step.Request) *seeker {
	s := r.seek(req, step.User{UID: 1000}, false)
	s.patient = true
	return s
}

// TestWaitersAreBounded: steps that wait for their share of a job count as their user's
// steps, and go on waiting while the job is suspended.
func TestWaitersAreBounded(t *testing.T) {
	r := testRegistry([]int{0, 1}, selection.Memory{}, nil)
	r.users.limits.Steps = 4
	job := new(uint32)
	*job = 1
	a, err := admit(r, 1000, func(r *step.Request) { r.NTasks = 2 })
	if err != nil {
		t.Fatal(err)
	}
	r.newJob(a, state.Job{ID: 1, UID: 1000, Origin: step.OriginAlloc})
	r.open(a.job)
	inner := func(r *step.Request) { r.Job, r.NTasks = job, 2 }
	first, err := admit(r, 1000, inner)
	if err != nil {
		t.Fatal(err)
	}
	req := request("x")
	inner(&req)
	var waiting []*seeker
	for range 2 {
		w := patient(r, &req)
		for range 3 { // it is counted once
			if _, freed, err := w.try(); freed == nil || err == nil {
				t.Fatalf("a step that has to wait: %v", err)
			}
		}
		waiting = append(waiting, w)
	}
	if _, freed, err := patient(r, &req).try(); freed != nil || api.CodeOf(err) != api.ResourceExhausted {
		t.Errorf("beyond the limit: %v", err)
	}
	r.setSuspended(a.job, &state.Suspension{Since: time.Now()})
	r.abandon(first)
	_, freed, err := waiting[0].try()
	if freed == nil || err == nil {
		t.Fatalf("while the job is suspended: %v", err)
	}
	if _, _, err := r.seek(&req, step.User{UID: 1000}, false).try(); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("without waiting: %v", err)
	}
	r.setSuspended(a.job, nil)
	select {
	case <-freed:
	default:
		t.Error("nobody tells of the resumption")
	}
	got, _, err := waiting[0].try()
	if err != nil || r.users.steps[1000] != 3 || len(a.job.line) != 1 {
		t.Fatalf("%v; %d steps, %d wait", err, r.users.steps[1000], len(a.job.line))
	}
	waiting[0].leave()
	waiting[1].leave()
	r.abandon(got)
	if r.users.steps[1000] != 1 || len(a.job.line) != 0 {
		t.Errorf("at the end: %d steps, %d wait", r.users.steps[1000], len(a.job.line))
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
	forever := srunopt.WaitForever
	req.ImmediateS = &forever
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan error, 1)
	go func() {
		_, err := tn.svc.Reserve(ctx, runRequest(req))
		done <- err
	}()
	held := func() int {
		tn.reg.users.mu.Lock()
		defer tn.reg.users.mu.Unlock()
		return tn.reg.users.requests[1000]
	}
	for held() == 0 {
		time.Sleep(time.Millisecond)
	}
	tn.reg.users.mu.Lock()
	tn.reg.users.limits.RequestBytes = tn.reg.users.requests[1000] * 3 / 2
	tn.reg.users.mu.Unlock()
	if _, err := tn.svc.Reserve(c.ctx, runRequest(req)); api.CodeOf(err) != api.ResourceExhausted {
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
