package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stepd/api"
	"stepd/internal/testkit"
	"stepd/node/selection"
	"stepd/node/spool"
	"stepd/node/store"
	"stepd/srunopt"
	"stepd/step"
)

// lineNode is a node in whose line requests wait.
type lineNode struct {
	*testNode
	lined int // how many wait
}

// ask sends a request that waits for so many seconds, and returns when it has its place in
// the line. The answer comes by the channel.
func (a *lineNode) ask(ctx context.Context, seconds int, change func(*step.Request)) chan error {
	a.t.Helper()
	req := request("exit", "0")
	req.ImmediateS = &seconds
	if change != nil {
		change(&req)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := a.svc.Run(ctx, runRequest(req))
		answer <- err
	}()
	a.lined++
	a.line(a.lined)
	return answer
}

// line waits until so many requests wait.
func (a *lineNode) line(n int) {
	a.t.Helper()
	a.lined = n
	a.eventually(fmt.Sprintf("a line of %d", n), func() bool {
		a.reg.mu.Lock()
		defer a.reg.mu.Unlock()
		return len(a.reg.line) == n
	})
}

func (a *lineNode) refused(what string, err error, code api.Code, words string) {
	a.t.Helper()
	if api.CodeOf(err) != code || !strings.Contains(api.MessageOf(err), words) {
		a.t.Errorf("%s: %v, want %s with %q", what, err, code, words)
	}
}

// TestImmediateInOrder: jobs wait in the order of asking, batch jobs, steps and allocations
// alike, and none overtakes one that waits.
func TestImmediateInOrder(t *testing.T) {
	t.Parallel()
	tn := &lineNode{testNode: fresh(t)}
	of := func(n int) func(*step.Request) { return func(r *step.Request) { r.NTasks = n } }
	hold := request("wait")
	hold.NTasks = 3
	first := tn.run(1000, hold)
	tn.until(first, step.Running)

	big := tn.ask(as(1000), srunopt.WaitForever, func(r *step.Request) { r.NTasks, r.Argv = 4, []string{"wait"} })
	small := tn.ask(as(1001), srunopt.WaitForever, of(1)) // would fit
	script := tn.ask(as(uint32(os.Getuid())), srunopt.WaitForever, func(r *step.Request) { *r = batch("exit 0"); forever := srunopt.WaitForever; r.ImmediateS = &forever })
	client := newClient(t, 1000)
	held := make(chan error, 1)
	go func() {
		_, err := tn.alloc(client, func(r *step.Request) { forever := srunopt.WaitForever; r.ImmediateS = &forever })
		held <- err
	}()
	tn.line(4)
	_, err := tn.svc.Run(as(1002), runRequest(request("exit", "0")))
	tn.refused("one that does not wait", err, api.ResourceExhausted, "the step does not fit: 4 requests wait before it")
	if e, ok := api.AsError(err); !ok || e.Waits == "" {
		t.Errorf("it is not told that it could wait: %v", err)
	}
	_, err = tn.svc.Run(as(1002), runRequest(func() step.Request {
		r := request("x")
		of(5)(&r)
		forever := srunopt.WaitForever
		r.ImmediateS = &forever
		return r
	}()))
	tn.refused("one that never fits", err, api.ResourceExhausted, "needs 5 CPUs on this node, which has 4 CPUs")
	tn.line(4)
	docs := tn.doc().Waiting
	if len(docs) != 4 || docs[0].UID != 1000 || docs[0].User == "" || docs[0].NTasks != 4 || docs[0].JobID != nil ||
		docs[0].For != fmt.Sprintf("room: it needs 4 CPUs on this node: of its 4 CPUs 1 are free; --overcommit shares them with other steps; when is not known: job %d has no time limit", first.Job) ||
		docs[3].For != "its turn: 3 requests wait before it" {
		t.Errorf("the node document lists %+v", docs)
	}

	if err := tn.cancel(first); err != nil {
		t.Fatal(err)
	}
	if err := <-big; err != nil {
		t.Errorf("the big one: %v", err)
	}
	tn.line(3)
	for name, answer := range map[string]chan error{"small": small, "script": script, "held": held} {
		select {
		case err := <-answer:
			t.Errorf("%s has overtaken: %v", name, err)
		default:
		}
	}
	if err := tn.cancel(step.ID{Job: first.Job + 1}); err != nil {
		t.Fatal(err)
	}
	for name, answer := range map[string]chan error{"small": small, "script": script, "held": held} {
		if err := <-answer; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	client.kill()
	tn.idle()
	tn.reg.users.mu.Lock()
	defer tn.reg.users.mu.Unlock()
	if len(tn.reg.users.steps) > 0 || len(tn.reg.users.requests) > 0 {
		t.Errorf("still counted: %v, %v", tn.reg.users.steps, tn.reg.users.requests)
	}
}

// TestImmediateOver: a request whose time is over is refused with what blocks it, and one
// whose client has gone is forgotten.
func TestImmediateOver(t *testing.T) {
	t.Parallel()
	tn := &lineNode{testNode: fresh(t)}
	hold := request("wait")
	hold.NTasks, hold.TimeLimitS = 3, 3600
	first := tn.run(1000, hold)
	tn.until(first, step.Running)
	two := func(r *step.Request) { r.NTasks = 2 }
	begun := time.Now()
	late := tn.ask(as(1000), 1, two)
	ctx, gone := context.WithCancel(as(1000))
	forgotten := tn.ask(ctx, srunopt.WaitForever, two)
	behind := tn.ask(as(1000), 2, func(r *step.Request) { r.NTasks = 1 })
	err := <-late
	if took := time.Since(begun); took < time.Second || took > 5*time.Second {
		t.Errorf("refused after %v", took)
	}
	tn.refused("the first", err, api.ResourceExhausted, "it needs 2 CPUs on this node: of its 4 CPUs 1 are free")
	tn.refused("the first", err, api.ResourceExhausted, "; free at ")
	tn.refused("the one behind", <-behind, api.ResourceExhausted, "1 request waits before it")
	tn.line(1)
	gone()
	tn.refused("without its client", <-forgotten, api.Canceled, "")
	tn.line(0)
	tn.wait(tn.run(1000, request("exit", "0"))) // there is room for one
}

// TestImmediateGone: a client that closes its connection, or its half of it, leaves the line
// at once, whatever it has sent behind its request.
func TestImmediateGone(t *testing.T) {
	tn := &lineNode{testNode: fresh(t)}
	client, _ := serveAs(t, tn.testNode, testkit.Always(1000))
	hold := request("wait")
	hold.NTasks = 4
	tn.until(tn.run(1000, hold), step.Running)
	forever := srunopt.WaitForever
	req := request("exit", "0")
	req.ImmediateS = &forever
	body := marshal(t, &api.RunRequest{Envelope: api.Envelope{Schema: api.Schema}, Request: &req})
	head := fmt.Sprintf("POST /v1/run HTTP/1.1\r\nHost: noded\r\nContent-Length: %d\r\n\r\n", len(body))
	for name, behind := range map[string]string{"nothing": "", "a byte": "x", "a request": head + string(body)} {
		for _, half := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s behind, half %v", name, half), func(t *testing.T) {
				c := testkit.Dial(t, client.Socket, testTimeout)
				if _, err := io.WriteString(c, head+string(body)); err != nil {
					t.Fatal(err)
				}
				tn.line(1)
				if _, err := io.WriteString(c, behind); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond) // net/http reads the first byte of it
				shut := c.Close
				if half {
					shut = c.(*net.UnixConn).CloseWrite
				}
				if err := shut(); err != nil {
					t.Fatal(err)
				}
				tn.line(0)
			})
		}
	}
}

// TestImmediateDrained: a drained node refuses what waits, with the reason, and so does one
// that stops.
func TestImmediateDrained(t *testing.T) {
	tn := &lineNode{testNode: start(t, t.TempDir(), nil)}
	hold := request("wait")
	hold.NTasks = 4
	tn.until(tn.run(1000, hold), step.Running)
	waits := tn.ask(as(1000), srunopt.WaitForever, nil)
	if _, err := tn.svc.Drain(as(0), &api.DrainRequest{Reason: "new disk"}); err != nil {
		t.Fatal(err)
	}
	tn.refused("what waits", <-waits, api.FailedPrecondition, "node is drained: new disk")
	tn.line(0)
	forever := srunopt.WaitForever
	req := request("exit", "0")
	req.ImmediateS = &forever
	_, err := tn.svc.Run(as(1000), runRequest(req))
	tn.refused("what would wait", err, api.FailedPrecondition, "node is drained: new disk")
	if _, err := tn.svc.Resume(as(0), &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	waits = tn.ask(as(1000), srunopt.WaitForever, nil)
	tn.stop()
	tn.refused("what waits", <-waits, api.Unavailable, "noded is stopping")
}

// TestWaitingInJob: the node document lists allocations, and what their steps wait for.
func TestWaitingInJob(t *testing.T) {
	t.Parallel()
	tn := &lineNode{testNode: fresh(t)}
	job, err := tn.alloc(newClient(t, 1000), func(r *step.Request) { r.NTasks = 4 })
	if err != nil {
		t.Fatal(err)
	}
	jobs := tn.doc().Jobs
	if len(jobs) != 1 || jobs[0].ID != job || jobs[0].State != string(step.Running) || jobs[0].Started == nil || jobs[0].NTasks != 4 || len(jobs[0].Steps) != 0 {
		t.Errorf("the allocation is %+v", jobs)
	}
	inJob := func(n int) step.Request {
		r, forever := request("wait"), srunopt.WaitForever
		r.Job, r.NTasks, r.ImmediateS = &job, n, &forever
		return r
	}
	runs := tn.run(1000, inJob(3))
	tn.until(runs, step.Running)
	ctx, gone := context.WithCancel(as(1000))
	answer := make(chan error, 1)
	go func() {
		_, err := tn.svc.Run(ctx, runRequest(inJob(2)))
		answer <- err
	}()
	tn.eventually("a waiting step", func() bool { return len(tn.doc().Waiting) == 1 })
	if w := tn.doc().Waiting[0]; w.JobID == nil || *w.JobID != job || w.For != fmt.Sprintf("2 CPUs of job %d", job) {
		t.Errorf("it waits: %+v", w)
	}
	if _, err := tn.svc.ask(as(1000), "suspend", &api.RefRequest{StepRef: api.StepRef{JobID: job}}); err != nil {
		t.Fatal(err)
	}
	if w := tn.doc().Waiting[0]; w.For != fmt.Sprintf("the resume of job %d", job) {
		t.Errorf("of a suspended job it waits: %+v", w)
	}
	gone()
	<-answer
}

// TestImmediateIsBounded: a request that waits counts as a step of its user's, and by its
// size.
func TestImmediateIsBounded(t *testing.T) {
	tn := &lineNode{testNode: start(t, t.TempDir(), func(c *Config) { c.PerUser.Steps = 2 })}
	defer tn.stop()
	hold := request("wait")
	hold.NTasks = 4
	first := tn.run(1000, hold)
	tn.until(first, step.Running)
	ctx, gone := context.WithCancel(as(1000))
	waits := tn.ask(ctx, srunopt.WaitForever, nil)
	forever := srunopt.WaitForever
	again := func(uid uint32) error {
		req := request("exit", "0")
		req.ImmediateS = &forever
		_, err := tn.svc.Run(as(uid), runRequest(req))
		return err
	}
	tn.refused("a second step", again(1000), api.ResourceExhausted, "UserStepsMax")
	tn.reg.users.mu.Lock()
	tn.reg.users.limits.Steps, tn.reg.users.limits.RequestBytes = 100, tn.reg.users.requests[1000]+1
	tn.reg.users.mu.Unlock()
	tn.refused("its bytes", again(1000), api.ResourceExhausted, "UserRequestBytes")
	client := newClient(t, 1000)
	_, err := tn.alloc(client, func(r *step.Request) { r.ImmediateS = &forever })
	tn.refused("an allocation's bytes", err, api.ResourceExhausted, "UserRequestBytes")
	tn.line(1)
	gone()
	<-waits
}

// TestBatchOverReboot: a batch job that ran when the host went down is lost, whether its
// stepd could say so or not, and not run again.
func TestBatchOverReboot(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	t.Cleanup(func() { tn.stop() })
	told, untold := tn.batch("wait"), tn.batch("wait")
	for _, id := range []step.ID{told, untold} {
		tn.until(id, step.Running)
	}
	tn.stop()
	killLeft(t, dir)

	tn = start(t, dir, func(c *Config) { // as the next boot finds it
		if err := c.complete(); err != nil {
			t.Fatal(err)
		}
		files := spool.Layout{Run: c.RunDir, Dir: c.SpoolDir}
		st, err := store.Open(store.Config{
			Spool: c.SpoolDir, Run: c.RunDir, Durable: []string{"drain", "batch"}, Boot: "another", Deadline: c.SpoolTimeout, Silent: func(error) {},
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []step.ID{told, untold} {
			rec, key := new(step.Record), fmt.Sprint(id.Job)
			err := st.Update(func(tx *store.Tx) error {
				var batch map[string]any
				if err := tx.Get("batch", key, &batch); err != nil {
					return err
				}
				batch["step"].(map[string]any)["boot_id"] = "another"
				return tx.Put("batch", key, batch)
			})
			if err = errors.Join(err, st.Get("step", id.Name(), rec)); err == nil && id == told {
				deadRecord(rec, "stepd got SIGTERM: the host goes down", step.NodeFail, time.Now())
				err = os.WriteFile(files.Result(id), marshal(t, rec), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(st.Close(), os.Remove(filepath.Join(c.RunDir, "volatile.journal"))); err != nil {
			t.Fatal(err)
		}
	})
	for id, words := range map[step.ID]string{told: "the host goes down", untold: "the node was rebooted while the step ran"} {
		if rec := tn.wait(id); rec.State != step.NodeFail || *rec.ExitCode != 1 || !strings.Contains(rec.Reason, words) {
			t.Errorf("step %s: %+v", id, rec)
		}
	}
	tn.idle()
}

// TestBatchStepdLost: a batch job is lost with its stepd.
func TestBatchStepdLost(t *testing.T) {
	tn := fresh(t)
	id := tn.batch("die 3")
	if rec := tn.wait(id); rec.State != step.NodeFail || *rec.ExitCode != 1 || !strings.Contains(rec.Reason, "stepd") {
		t.Errorf("record %+v", rec)
	}
}

// TestImmediateNeverFits: a request that would not fit on the empty node either never waits,
// for it would block the line for ever.
func TestImmediateNeverFits(t *testing.T) {
	r := testRegistry([]int{0, 1, 2, 3}, selection.Memory{MB: 1000, Consumable: true}, nil, selection.Core{Socket: 0, CPUs: []int{0, 1}}, selection.Core{Socket: 0, CPUs: []int{2, 3}})
	four := func(r *step.Request) { r.NTasks = 4 }
	whole, err := admit(r, 1000, four)
	if err != nil {
		t.Fatal(err)
	}
	perCore := func(r *step.Request) { r.NTasks, r.Binding.NTasksPerCore = 4, 1 }
	lots := uint64(2000)
	memory := func(r *step.Request) { r.Mem = &lots }
	for _, busy := range []bool{true, false} {
		if !busy {
			r.abandon(whole)
		}
		for words, change := range map[string]func(*step.Request){"there is room for 2 CPUs on 2 free cores": perCore, "it needs 2000 MB of memory on this node": memory} {
			req := request("x")
			change(&req)
			w := patient(r, &req)
			if _, freed, err := w.try(); freed != nil || w.waits() || api.CodeOf(err) != api.ResourceExhausted || !strings.Contains(err.Error(), words) {
				t.Errorf("busy %t: it waits: %t; %v, want %q", busy, w.waits(), err, words)
			}
			w.leave()
		}
	}
}
