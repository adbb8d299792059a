package node

import (
	"errors"
	"os"
	"strings"
	"testing"

	"stepd/api"
	"stepd/step"
)

// TestControllersNumbers: root chooses the numbers of jobs and steps; noded's own go on
// above them.
func TestControllersNumbers(t *testing.T) {
	tn := fresh(t)
	uid := uint32(1000)
	ask := func(who uint32, change func(*step.Request)) (step.ID, error) {
		req := request("wait")
		if who == 0 {
			req.UID = &uid
		}
		change(&req)
		reply, err := tn.svc.Run(as(who), runRequest(req))
		if err != nil {
			return step.ID{}, err
		}
		return step.ID{Job: reply.JobID, Step: reply.StepID}, nil
	}
	as17 := func(number *uint32) func(*step.Request) {
		return func(r *step.Request) { r.As = &step.Numbers{Job: 17, Step: number} }
	}
	if _, err := ask(1000, as17(nil)); api.CodeOf(err) != api.PermissionDenied || !strings.Contains(err.Error(), "id: only root") {
		t.Errorf("as a user: %v", err)
	}
	for field, change := range map[string]func(*step.Request){
		"array_task":    func(r *step.Request) { r.Array = &step.ArrayTask{Job: 1} },
		"restart_count": func(r *step.Request) { r.RestartCount = 1 },
	} {
		if _, err := ask(1000, change); api.CodeOf(err) != api.PermissionDenied || !strings.Contains(err.Error(), field+": only root") {
			t.Errorf("%s of a user's: %v", field, err)
		}
	}
	id, err := ask(0, as17(ptr(uint32(3))))
	if err != nil || id != (step.ID{Job: 17, Step: 3}) {
		t.Fatalf("step %s, %v", id, err)
	}
	rec := tn.until(id, step.Running)
	if rec.UID != uid {
		t.Errorf("record %+v", rec)
	}
	taken := func(what string, err error, next string) {
		t.Helper()
		if want := "id: the number is taken; " + next + " is free"; api.CodeOf(err) != api.FailedPrecondition || err.Error() != want {
			t.Errorf("%s: %v, want %q", what, err, want)
		}
	}
	_, err = ask(0, as17(ptr(uint32(4))))
	taken("another job 17", err, "18.4")

	// Further steps of the job.
	further := func(number *uint32) (step.ID, error) {
		return ask(0, func(r *step.Request) { as17(number)(r); r.Job, r.Overlap = &id.Job, true })
	}
	for _, c := range []struct{ want, got *uint32 }{{ptr(uint32(9)), ptr(uint32(9))}, {ptr(uint32(1)), ptr(uint32(1))}, {nil, ptr(uint32(10))}} {
		if got, err := further(c.want); err != nil || got != (step.ID{Job: 17, Step: *c.got}) {
			t.Errorf("a further step: %s, %v; want 17.%d", got, err, *c.got)
		}
	}
	_, err = further(ptr(uint32(9)))
	taken("a step that there is", err, "17.11")
	for what, change := range map[string]func(*step.Request){
		"another job":   func(r *step.Request) { r.Job, r.As = &id.Job, &step.Numbers{Job: 16} },
		"job 0":         func(r *step.Request) { r.As = new(step.Numbers) },
		"Slurm's marks": func(r *step.Request) { r.As = &step.Numbers{Job: step.JobsEnd} },
		"a batch step":  func(r *step.Request) { r.Script = []byte("#!/bin/sh"); as17(ptr(uint32(0)))(r) },
	} {
		if _, err := ask(0, change); api.CodeOf(err) != api.InvalidArgument || !strings.Contains(err.Error(), "id: ") {
			t.Errorf("%s: %v", what, err)
		}
	}

	// Its own numbers are higher, a controller's need not be.
	if next := tn.run(1000, request("exit", "0")); next != (step.ID{Job: 18}) {
		t.Errorf("the next job's step is %s", next)
	}
	client := newClient(t, 0)
	job, err := tn.alloc(client, func(r *step.Request) { r.UID, r.As, r.Overcommit = &uid, &step.Numbers{Job: 5}, true })
	if err != nil || job != 5 {
		t.Fatalf("allocation %d, %v", job, err)
	}
	_, err = tn.alloc(client, func(r *step.Request) { r.UID, r.As, r.Overcommit = &uid, &step.Numbers{Job: 5}, true })
	taken("another allocation", err, "19.0")
	if _, err := tn.alloc(client, func(r *step.Request) { r.As = &step.Numbers{Job: 6, Step: new(uint32)} }); api.CodeOf(err) != api.InvalidArgument {
		t.Errorf("a step of an allocation: %v", err)
	}
	client.kill()
	if err := tn.cancel(id); err != nil {
		t.Fatal(err)
	}
	tn.idle()
}

// TestDryRunNumbers: a dry run has the number that the run would have, or its refusal, and
// spends none.
func TestDryRunNumbers(t *testing.T) {
	tn := fresh(t)
	numbered := func(job, number uint32, of *uint32) step.Request {
		req := request("wait")
		req.Job, req.Overlap, req.As = of, of != nil, &step.Numbers{Job: job, Step: &number}
		return req
	}
	chosen := numbered(17, 3, nil)
	for _, want := range []step.ID{{Job: 17, Step: 3}, {Job: 17, Step: 3}} {
		reply, err := tn.svc.DryRun(as(0), runRequest(chosen))
		if err != nil || reply.Plan.ID != want {
			t.Fatalf("plan %+v, %v, want step %s", reply, err, want)
		}
	}
	first := tn.run(0, chosen)
	tn.until(first, step.Running)
	for _, c := range []struct {
		what string
		req  step.Request
		want step.ID
		says string
	}{
		{"the job's number is taken", numbered(17, 4, nil), step.ID{}, "id: the number is taken; 18.4 is free"},
		{"a further step", numbered(17, 9, &first.Job), step.ID{Job: 17, Step: 9}, ""},
		{"the step's number is taken", numbered(17, 3, &first.Job), step.ID{}, "id: the number is taken; 17.4 is free"},
		{"the next job", request("wait"), step.ID{Job: 18}, ""},
	} {
		reply, err := tn.svc.DryRun(as(0), runRequest(c.req))
		switch {
		case c.says != "" && (api.CodeOf(err) != api.FailedPrecondition || err.Error() != c.says):
			t.Errorf("%s: %v, want %q", c.what, err, c.says)
		case c.says == "" && (err != nil || reply.Plan.ID != c.want):
			t.Errorf("%s: %+v, %v, want %s", c.what, reply, err, c.want)
		}
	}
	if next := tn.run(0, request("exit", "0")); next != (step.ID{Job: 18}) {
		t.Errorf("the next job's step is %s", next)
	}
	if err := tn.cancel(first); err != nil {
		t.Fatal(err)
	}
	tn.idle()
}

// TestHighestNumbers: a controller that has chosen the highest numbers goes on below them;
// noded gives out none of Slurm's marks.
func TestHighestNumbers(t *testing.T) {
	tn := fresh(t)
	ask := func(job *uint32, numbers *step.Numbers) (step.ID, error) {
		req := request("wait")
		req.Job, req.As, req.Overlap = job, numbers, job != nil
		reply, err := tn.svc.Run(as(0), runRequest(req))
		if err != nil {
			return step.ID{}, err
		}
		return step.ID{Job: reply.JobID, Step: reply.StepID}, nil
	}
	job, low := uint32(step.JobsEnd-1), uint32(5)
	for _, want := range []step.ID{{Job: job, Step: step.StepsEnd - 1}, {Job: low}} {
		got, err := ask(nil, &step.Numbers{Job: want.Job, Step: &want.Step})
		if err != nil || got != want {
			t.Fatalf("step %s: %s, %v", want, got, err)
		}
		tn.until(got, step.Running)
	}
	if got, err := ask(&job, &step.Numbers{Job: job, Step: &low}); err != nil || got != (step.ID{Job: job, Step: low}) {
		t.Errorf("a lower step: %s, %v", got, err)
	}
	if got, err := ask(&job, nil); err == nil || !strings.Contains(err.Error(), "all step numbers are spent") {
		t.Errorf("the next step: %s, %v", got, err)
	}
	if got, err := ask(nil, nil); err == nil || !strings.Contains(err.Error(), "all job numbers are spent") {
		t.Errorf("the next job: %s, %v", got, err)
	}
	for _, of := range []*uint32{nil, &job} { // no other is named
		if got, err := ask(of, &step.Numbers{Job: job, Step: &low}); err == nil || err.Error() != "id: the number is taken" {
			t.Errorf("a number that is taken: %s, %v", got, err)
		}
	}
	for _, id := range []step.ID{{Job: job, Step: step.StepsEnd - 1}, {Job: low}} {
		if err := tn.cancel(id); err != nil {
			t.Fatal(err)
		}
	}
	tn.idle()
}

// TestNumberWithLeftovers: what a noded that was killed has left of a step that the store had
// forgotten is not the next one's with its number.
func TestNumberWithLeftovers(t *testing.T) {
	tn := fresh(t)
	id := step.ID{Job: 17}
	for _, path := range []string{tn.spool.Events(id), tn.spool.Output(id), tn.spool.Result(id)} {
		if err := os.WriteFile(path, []byte("{}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	req := request("wait")
	req.As = &step.Numbers{Job: id.Job}
	if got := tn.run(0, req); got != id {
		t.Fatalf("step %s", got)
	}
	tn.until(id, step.Running)
	for _, path := range []string{tn.spool.Output(id), tn.spool.Result(id)} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%q is there: %v", path, err)
		}
	}
	if log, err := os.ReadFile(tn.spool.Events(id)); err != nil || strings.HasPrefix(string(log), "{}") {
		t.Errorf("event log %q, %v", log, err)
	}
	if err := tn.cancel(id); err != nil {
		t.Fatal(err)
	}
	tn.idle()
}

// TestControllersArray: what a controller says of array and earlier runs is the job's, and
// its steps'; the job's number serves for its next run.
func TestControllersArray(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	uid := uint32(os.Getuid())
	array := step.ArrayTask{Job: 12, Task: 3, Count: 4, Min: 1, Max: 7, Step: 2}
	run := func(restarts uint32) (step.ID, error) {
		req := batch("wait")
		req.UID, req.Array, req.RestartCount, req.As = &uid, &array, restarts, &step.Numbers{Job: 14}
		reply, err := tn.svc.Run(as(0), runRequest(req))
		if err != nil {
			return step.ID{}, err
		}
		return step.ID{Job: reply.JobID, Step: reply.StepID}, nil
	}
	for restarts := range uint32(3) {
		id, err := run(restarts)
		if err != nil || id != (step.ID{Job: 14, Step: step.BatchStep}) {
			t.Fatalf("run %d: step %s, %v", restarts, id, err)
		}
		rec := tn.until(id, step.Running)
		if rec.Array == nil || *rec.Array != array || rec.Restarts != restarts {
			t.Errorf("record %+v", rec)
		}
		inner := tn.stepOf(14, uid, "wait")
		rec = tn.until(inner, step.Running)
		if rec.Array == nil || *rec.Array != array || rec.Restarts != restarts || inner.Step != 0 {
			t.Errorf("a step: %+v", rec)
		}
		if _, err := run(restarts + 1); err == nil {
			t.Error("it runs twice")
		}
		tn.cancelJob(id)
		tn.wait(id)
		tn.idle()
		if _, err := run(restarts); api.CodeOf(err) != api.FailedPrecondition || !strings.Contains(err.Error(), "the number is taken; 15.") {
			t.Errorf("another job of that number: %v", err)
		}
	}
	recs, err := tn.shows(as(0), api.StepRef{JobID: 14})
	if err != nil || len(recs) != 2 || recs[0].Restarts != 2 || recs[1].Restarts != 2 {
		t.Errorf("what is kept: %v, %v", recs, err)
	}
}
