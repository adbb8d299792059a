package node

import (
	"context"
	"encoding/json"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/step"
)

// client is a process that asks, and may die.
type client struct {
	cmd *exec.Cmd
	ctx context.Context
}

func newClient(t *testing.T, uid uint32) *client {
	t.Helper()
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &client{cmd, requestOf(api.Peer{UID: uid, GID: uid, PID: int32(cmd.Process.Pid)})}
	t.Cleanup(c.kill)
	return c
}

func (c *client) kill() {
	_ = c.cmd.Process.Kill() // it may be dead already
	_ = c.cmd.Wait()
}

// reserve reserves a step as the client, or fails the test.
func (tn *testNode) reserve(c *client, req step.Request) step.ID {
	tn.t.Helper()
	reply, err := tn.svc.Reserve(c.ctx, runRequest(req))
	if err != nil {
		tn.t.Fatalf("Reserve: %v", err)
	}
	return step.ID{Job: reply.JobID, Step: reply.StepID}
}

func (tn *testNode) launch(ctx context.Context, id step.ID, change step.LaunchChange) error {
	tn.t.Helper()
	_, err := tn.svc.Launch(ctx, &api.LaunchRequest{StepRef: ref(id), Change: packedChange(change)})
	return err
}

// packedChange is a change as it comes by the socket.
func packedChange(c step.LaunchChange) *step.LaunchChange {
	c.Pack()
	return &c
}

// idle checks that nothing is left of any job.
func (tn *testNode) idle() {
	tn.t.Helper()
	deadline := time.Now().Add(testTimeout)
	for tn.reg.usage().FreeCPUs != 4 || len(tn.reg.usage().jobs) != 0 {
		if time.Now().After(deadline) {
			tn.t.Fatalf("usage %+v", tn.reg.usage())
		}
		time.Sleep(2 * time.Millisecond)
	}
	tn.reg.mu.Lock()
	defer tn.reg.mu.Unlock()
	tn.reg.users.mu.Lock()
	defer tn.reg.users.mu.Unlock()
	if len(tn.reg.users.steps)+len(tn.reg.users.requests)+len(tn.reg.steps) != 0 {
		tn.t.Errorf("left: %v %v %v", tn.reg.users.steps, tn.reg.users.requests, tn.reg.steps)
	}
}

// TestReserveAndLaunch: the two halves of a run, with a change between them.
func TestReserveAndLaunch(t *testing.T) {
	tn := fresh(t)
	c := newClient(t, 1000)
	req := request("env", "GREETING")
	req.Env = []string{"GREETING=before", "GONE=1"}
	id := tn.reserve(c, req)
	if rec := tn.until(id, step.Pending); rec.StepdPID != 0 || id != (step.ID{Job: 1}) {
		t.Errorf("reserved %+v", rec)
	}
	if u := tn.reg.usage(); u.FreeCPUs != 3 || len(u.jobs) != 1 {
		t.Errorf("usage %+v: a reservation has its CPUs", u)
	}
	inner := request("exit", "0")
	inner.Job = &id.Job
	if _, err := tn.svc.Run(as(1000), runRequest(inner)); api.CodeOf(err) != api.NotFound {
		t.Errorf("a step in a job that has not begun: %v", err)
	}
	if _, err := tn.svc.Signal(as(1000), &api.SignalRequest{StepRef: ref(id), Signal: 15}); err == nil {
		t.Error("a step without tasks was signalled")
	}
	if err := tn.launch(as(1001), id, step.LaunchChange{}); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("launched by another user: %v", err)
	}
	if err := tn.launch(c.ctx, id, step.LaunchChange{Env: []string{"no variable"}}); api.CodeOf(err) != api.InvalidArgument {
		t.Errorf("a bad change: %v", err)
	}
	if err := tn.launch(c.ctx, id, step.LaunchChange{Env: []string{"GREETING=after"}}); err != nil {
		t.Fatal(err)
	}
	if err := tn.launch(c.ctx, id, step.LaunchChange{}); api.CodeOf(err) != api.NotFound {
		t.Errorf("launched twice: %v", err)
	}
	if rec := tn.wait(id); rec.State != step.Completed || rec.Reason != "GREETING=after" {
		t.Errorf("record %+v", rec)
	}
	tn.nothingLeft(id)
	c.kill()
	tn.idle()
}

// TestReservationsEnd: with the client, by a cancel, by age, and with their job.
func TestReservationsEnd(t *testing.T) {
	tn := fresh(t)
	check := func(id step.ID, reason string) {
		t.Helper()
		rec := tn.wait(id)
		if rec.State != step.Cancelled || rec.Reason != reason || rec.Ended == nil || rec.StepdPID != 0 {
			t.Errorf("step %s: %+v", id, rec)
		}
		tn.nothingLeft(id)
		if err := tn.launch(as(0), id, step.LaunchChange{}); api.CodeOf(err) != api.NotFound {
			t.Errorf("launched after its end: %v", err)
		}
		if n, err := tn.svc.Events(as(0), id); err != nil || n != 4 {
			t.Errorf("%d events, %v", n, err)
		}
	}
	dies := newClient(t, 1000)
	id := tn.reserve(dies, request("wait"))
	waited := make(chan struct{})
	go func() { tn.wait(id); close(waited) }()
	dies.kill()
	check(id, "the client that reserved it is gone")
	<-waited

	c := newClient(t, 1000)
	id = tn.reserve(c, request("wait"))
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id), Reason: "enough"}); err != nil {
		t.Fatal(err)
	}
	check(id, `cancelled by uid 1000: "enough"`)

	tn.reserveMax = time.Millisecond
	check(tn.reserve(c, request("wait")), "it was not launched within 1ms")
	tn.reserveMax = reserveMax

	lead := tn.run(1000, request("wait"))
	tn.until(lead, step.Running)
	inner := request("wait")
	inner.Job = &lead.Job
	id = tn.reserve(c, inner)
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(lead)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(lead)
	check(id, jobEnded)

	gone := newClient(t, 1000)
	gone.kill()
	if _, err := tn.svc.Reserve(gone.ctx, runRequest(request("wait"))); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("a client that is gone: %v", err)
	}
	tn.idle()
}

// TestReservationsAreBounded: in memory, by user.
func TestReservationsAreBounded(t *testing.T) {
	tn := fresh(t)
	c := newClient(t, 1000)
	tn.reg.users.requests[1000] = tn.reg.users.limits.RequestBytes
	_, err := tn.svc.Reserve(c.ctx, runRequest(request("wait")))
	if api.CodeOf(err) != api.ResourceExhausted {
		t.Errorf("beyond the limit: %v", err)
	}
	delete(tn.reg.users.requests, 1000)
	tn.idle()
}

// TestReservationsOverRestart: the next noded gives them back.
func TestReservationsOverRestart(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	c := newClient(t, 1000)
	id := tn.reserve(c, request("wait"))
	tn.stop()
	tn = start(t, dir, nil)
	t.Cleanup(tn.stop)
	if rec := tn.wait(id); rec.State != step.Cancelled || !strings.Contains(rec.Reason, "restarted") {
		t.Errorf("record %+v", rec)
	}
	tn.idle()
}

// alloc makes an allocation of the client's.
func (tn *testNode) alloc(c *client, change func(*step.Request)) (uint32, error) {
	tn.t.Helper()
	req := request()
	req.Stdin = step.Stream{}
	if change != nil {
		change(&req)
	}
	reply, err := tn.svc.Alloc(c.ctx, runRequest(req))
	if err != nil {
		return 0, err
	}
	return reply.JobID, nil
}

// stepOf runs a step in the job.
func (tn *testNode) stepOf(job, uid uint32, argv ...string) step.ID {
	tn.t.Helper()
	req := request(argv...)
	req.Job, req.Overlap = &job, true
	return tn.run(uid, req)
}

func TestAlloc(t *testing.T) {
	tn := fresh(t)
	c := newClient(t, 1000)
	id, err := tn.alloc(c, func(r *step.Request) { r.NTasks = 3; r.Name = "work" })
	if err != nil || id != 1 {
		t.Fatalf("job %d, %v", id, err)
	}
	if u := tn.reg.usage(); u.FreeCPUs != 1 || len(u.jobs) != 1 || u.jobs[0].Origin != step.OriginAlloc || u.jobs[0].Name != "work" {
		t.Errorf("usage %+v", u)
	}
	var doc api.Node
	status1, err := tn.svc.Node(as(1001), &api.Empty{})
	if err != nil || json.Unmarshal(status1.Node, &doc) != nil || doc.State != "ALLOCATED" || len(doc.Jobs) != 1 || doc.Jobs[0].CPUs != "0-2" {
		t.Errorf("node %+v, %v", doc, err)
	}
	first := tn.stepOf(id, 1000, "exit", "3")
	if first != (step.ID{Job: 1, Step: 0}) {
		t.Errorf("the first step is %s", first)
	}
	if rec := tn.wait(first); *rec.ExitCode != 3 {
		t.Errorf("record %+v", rec)
	}
	if tn.reg.job(id) == nil {
		t.Fatal("the job ended with its first step")
	}
	second := tn.stepOf(id, 1000, "wait")
	tn.until(second, step.Running)
	if _, err := tn.svc.Release(as(1001), &api.ReleaseRequest{JobID: id}); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("released by another user: %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := tn.waits(as(1000), api.StepRef{JobID: id})
		ended <- err
	}()
	if _, err := tn.svc.Release(as(1000), &api.ReleaseRequest{JobID: id}); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(second); rec.State != step.Cancelled || rec.Reason != "the job was released" {
		t.Errorf("record %+v", rec)
	}
	if err := <-ended; err != nil {
		t.Errorf("a wait for the job: %v", err)
	}
	tn.nothingLeft(second)
	if _, err := tn.svc.Release(as(1000), &api.ReleaseRequest{JobID: id}); api.CodeOf(err) != api.NotFound {
		t.Errorf("released twice: %v", err)
	}
	tn.idle()
	if jobs, err := tn.store.Jobs(); err != nil || len(jobs) != 0 {
		t.Errorf("jobs in the store: %+v, %v", jobs, err)
	}
}

// TestAllocEnds: with its client, by a cancel; and refused ones leave nothing.
func TestAllocEnds(t *testing.T) {
	tn := fresh(t)
	c := newClient(t, 1000)
	id, err := tn.alloc(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := tn.stepOf(id, 1000, "wait")
	tn.until(s, step.Running)
	c.kill()
	if rec := tn.wait(s); rec.State != step.Cancelled || rec.Reason != clientGone {
		t.Errorf("record %+v", rec)
	}
	tn.idle()

	c = newClient(t, 1000)
	if id, err = tn.alloc(c, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := tn.svc.Cancel(as(1001), &api.CancelRequest{StepRef: api.StepRef{JobID: id}}); api.CodeOf(err) != api.PermissionDenied {
		t.Errorf("cancelled by another user: %v", err)
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: api.StepRef{JobID: id}}); err != nil {
		t.Fatal(err)
	}
	tn.idle()

	for name, change := range map[string]func(*step.Request){
		"in a job":     func(r *step.Request) { r.Job = &id },
		"with script":  func(r *step.Request) { r.Script = []byte("#!/bin/sh\n") },
		"does not fit": func(r *step.Request) { r.NTasks = 9 },
	} {
		if id, err := tn.alloc(c, change); err == nil {
			t.Errorf("%s: job %d", name, id)
		}
	}
	tn.idle()
}

// TestAllocOverRestart: the client is found again, or the job ends.
func TestAllocOverRestart(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	c, gone := newClient(t, 1000), newClient(t, 1000)
	id, err := tn.alloc(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	left, err := tn.alloc(gone, nil)
	if err != nil {
		t.Fatal(err)
	}
	orphan, kept := tn.stepOf(left, 1000, "wait"), tn.stepOf(id, 1000, "wait")
	tn.until(orphan, step.Running)
	tn.until(kept, step.Running)
	tn.stop()
	gone.kill()

	tn = start(t, dir, nil)
	t.Cleanup(tn.stop)
	if rec := tn.wait(orphan); rec.State != step.Cancelled || rec.Reason != clientGone {
		t.Errorf("record %+v", rec)
	}
	if next := tn.stepOf(id, 1000, "exit", "0"); next.Step != 1 {
		t.Errorf("the next step is %s", next)
	} else {
		tn.wait(next)
	}
	c.kill()
	if rec := tn.wait(kept); rec.State != step.Cancelled {
		t.Errorf("record %+v", rec)
	}
	tn.idle()
}

// TestReserveAndCancelAtOnce: a reservation can be cancelled by its number,
// which can be guessed, from the moment on that it has one.
func TestReserveAndCancelAtOnce(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	c := newClient(t, 1000)
	var next atomic.Uint32
	next.Store(1)
	stop := make(chan struct{})
	var guessers sync.WaitGroup
	for range 4 {
		guessers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for k := range uint32(2) {
					// Most guesses are wrong.
					_, _ = tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(step.ID{Job: next.Load() + k})})
				}
			}
		})
	}
	for range 100 {
		r, err := tn.svc.Reserve(c.ctx, runRequest(request("exit", "0")))
		if err != nil {
			continue
		}
		next.Store(r.JobID + 1)
		_, _ = tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(step.ID{Job: r.JobID, Step: r.StepID})})
	}
	close(stop)
	guessers.Wait()
	c.kill()
	tn.idle()
}

// TestLauncherIsStored: who has asked for a step is in the state with its number, since
// a noded that dies next has written nothing else of it; and a stepd that the next one
// cannot reach is told nothing.
func TestLauncherIsStored(t *testing.T) {
	tn := start(t, t.TempDir(), nil)
	t.Cleanup(func() { tn.stop() })
	c := newClient(t, 1000)
	rec, err := tn.store.Step(tn.reserve(c, request("wait")))
	if err != nil || rec.LauncherPID != c.cmd.Process.Pid || rec.LauncherStart == 0 {
		t.Errorf("stored: %+v, %v", rec, err)
	}
	new(follower).link.send(&stepapi.Msg{Type: stepapi.TypeLauncherLost})
}
