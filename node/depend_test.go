package node

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"stepd/api"
	"stepd/step"
)

// after is a job that waits for others.
func (tn *testNode) after(script, format string, args ...any) step.ID {
	tn.t.Helper()
	return tn.batch(func(r *step.Request) { r.Dependency = fmt.Sprintf(format, args...) }, script)
}

func (tn *testNode) completes(ids ...step.ID) {
	tn.t.Helper()
	for _, id := range ids {
		if rec := tn.wait(id); rec.State != step.Completed {
			tn.t.Errorf("job %d: %s: %s", id.Job, rec.State, rec.Reason)
		}
	}
}

// dropStep forgets the record of an ended step.
func (tn *testNode) dropStep(id step.ID) error {
	return tn.store.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketSteps).Delete(stepKey(id)) })
}

// TestDependencies: each kind, of a job that runs and has ended, over a restart.
func TestDependencies(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	first := tn.batch(nil, "wait")
	tn.until(first, step.Running)
	tn.completes(tn.after("exit 0", "after:%d", first.Job))
	later := tn.after("exit 0", "after:%d+1", first.Job)
	ok, notOK := tn.after("exit 0", "afterok:%d", first.Job), tn.after("exit 0", "afternotok:%d", first.Job)
	any, either := tn.after("exit 0", "afterany:%d", first.Job), tn.after("exit 0", "afterok:%d?afterany:%d", first.Job, first.Job)
	both := tn.after("exit 0", "afterany:%d,afternotok:%d,afterany:%d", first.Job, any.Job, notOK.Job)
	kill := true
	killed := tn.batch(func(r *step.Request) { r.Dependency, r.KillInvalidDep = fmt.Sprintf("afterok:%d", first.Job), &kill }, "exit 0")
	for id, words := range map[step.ID]string{
		later: fmt.Sprintf("Dependency: after:%d+1", first.Job), ok: fmt.Sprintf("Dependency: afterok:%d", first.Job),
		notOK: "Dependency: afternotok", any: "Dependency: afterany", killed: "Dependency: afterok",
		either: fmt.Sprintf("Dependency: afterok:%d, afterany:%d", first.Job, first.Job),
	} {
		tn.waits(id, words)
	}
	tn.stop()
	tn = start(t, dir, nil)
	defer tn.stop()
	tn.waits(later, "Dependency: after:")
	tn.cancelJob(first)
	tn.completes(notOK, any, either)
	never := fmt.Sprintf("DependencyNeverSatisfied: afterok:%d: job %d: CANCELLED", first.Job, first.Job)
	tn.waits(ok, never)
	tn.waits(both, fmt.Sprintf("DependencyNeverSatisfied: afternotok:%d: job %d: COMPLETED", any.Job, any.Job))
	if rec := tn.wait(killed); rec.State != step.Cancelled || rec.Reason != never {
		t.Errorf("killed: %+v", rec)
	}
	// Of those that have ended already.
	tn.completes(tn.after("exit 0", "afternotok:%d,afterok:%d", first.Job, any.Job))
	tn.waits(tn.after("exit 0", "afternotok:%d", any.Job), "DependencyNeverSatisfied")
	// What was found out outlives its record.
	if err := tn.dropStep(first); err != nil {
		t.Fatal(err)
	}
	tn.queue.kick()
	tn.waits(ok, never)
}

// TestDependencyKept: what has come of a dependency stays, when the record of the other job
// is forgotten while the job waits for something else.
func TestDependencyKept(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, nil)
	first, busy := tn.batch(nil, "wait"), tn.batch(nil, "wait")
	other := tn.batch(func(r *step.Request) { r.Hold = true }, "exit 0")
	tn.until(first, step.Running)
	tn.until(busy, step.Running)
	any := tn.batch(func(r *step.Request) {
		r.NTasks, r.Dependency = 4, fmt.Sprintf("afterok:%d?afternotok:%d", other.Job, first.Job)
	}, "exit 0")
	held := func(format string) step.ID {
		return tn.batch(func(r *step.Request) { r.Hold, r.Dependency = true, fmt.Sprintf(format, first.Job) }, "exit 0")
	}
	met, never := held("afternotok:%d"), held("afterok:%d")
	kill := true
	killed := tn.batch(func(r *step.Request) {
		r.Hold, r.Dependency, r.KillInvalidDep = true, fmt.Sprintf("afterok:%d", first.Job), &kill
	}, "exit 0")
	tn.cancelJob(first)
	tn.waits(any, "Resources")
	if rec := tn.wait(killed); rec.State != step.Cancelled || !strings.HasPrefix(rec.Reason, "DependencyNeverSatisfied") {
		t.Errorf("killed: %+v", rec)
	}
	tn.waits(met, "JobHeldUser")
	tn.waits(never, "JobHeldUser")
	tn.stop()
	tn = start(t, dir, nil)
	defer tn.stop()
	if err := tn.dropStep(first); err != nil {
		t.Fatal(err)
	}
	for _, id := range []step.ID{met, never} {
		if _, err := tn.svc.Hold(as(0), &api.HoldRequest{Job: &api.StepRef{JobId: id.Job}, Release: true}); err != nil {
			t.Error(err)
		}
	}
	tn.waits(never, fmt.Sprintf("DependencyNeverSatisfied: afterok:%d: job %d: CANCELLED", first.Job, first.Job))
	tn.cancelJob(busy)
	tn.completes(any, met)
}

// TestDependencyOfArray: on all of it, on one task, and task by task.
func TestDependencyOfArray(t *testing.T) {
	tn := fresh(t)
	array := tn.batch(func(r *step.Request) { r.Array = "1-4:3"; r.NTasks = 1 }, "wait")
	second := step.ID{Job: array.Job + 1, Step: step.BatchStep}
	tn.until(array, step.Running)
	tn.until(second, step.Running)
	any, ok, bad := tn.after("exit 0", "afterany:%d", array.Job), tn.after("exit 0", "afterok:%d", array.Job), tn.after("exit 0", "afternotok:%d", array.Job)
	one := tn.after("exit 0", "afterany:%d_4", array.Job)
	corr := tn.batch(func(r *step.Request) { r.Array, r.Dependency = "1,4", fmt.Sprintf("aftercorr:%d", array.Job) }, "exit 0")
	tn.completes(tn.after("exit 0", "after:%d", array.Job))
	tn.waits(one, "Dependency")
	tn.cancelJob(second)
	tn.completes(one)
	tn.waits(step.ID{Job: corr.Job + 1, Step: step.BatchStep}, "DependencyNeverSatisfied: aftercorr")
	tn.waits(corr, "Dependency: aftercorr")
	tn.waits(any, fmt.Sprintf("Dependency: afterany:%d", array.Job))
	// The record of the task that has failed is forgotten before the last one ends.
	if err := tn.dropStep(second); err != nil {
		t.Fatal(err)
	}
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{Step: ref(array)}); err != nil {
		t.Fatal(err)
	}
	tn.completes(any, bad)
	tn.waits(ok, "DependencyNeverSatisfied: afterok")
	good := tn.batch(func(r *step.Request) { r.Array = "0-2" }, "exit 0")
	tn.completes(tn.after("exit 0", "afterok:%d", good.Job))
}

// TestSingleton: one job of a name and user at a time, in order; tasks of an array are one.
func TestSingleton(t *testing.T) {
	tn := fresh(t)
	of := func(name, array, script string) step.ID {
		return tn.batch(func(r *step.Request) { r.Name, r.Array, r.Dependency = name, array, "singleton" }, script)
	}
	first := of("one", "", "wait")
	tn.until(first, step.Running)
	next, third := of("one", "", "wait"), of("one", "0-1", "exit 0")
	tn.completes(of("other", "", "exit 0"))
	tn.waits(next, "Dependency: singleton")
	tn.waits(third, "Dependency: singleton")
	tn.cancelJob(first)
	tn.until(next, step.Running)
	tn.waits(third, "Dependency: singleton")
	tn.cancelJob(next)
	tn.completes(third, step.ID{Job: third.Job + 1, Step: step.BatchStep})
}

// TestDependencyRefusals: jobs that there are not, the own one, and too many.
func TestDependencyRefusals(t *testing.T) {
	tn := fresh(t)
	array := tn.batch(func(r *step.Request) { r.Array, r.Hold = "0-2", true }, "exit 0") // 1 to 3
	step0 := tn.run(1000, request("wait"))                                               // 4
	var many strings.Builder
	many.WriteString("afterany")
	for i := range 300 {
		fmt.Fprintf(&many, ":%d+1", i+1)
	}
	for text, words := range map[string]string{
		"afterok:99": "no such batch job", fmt.Sprintf("afterok:%d", step0.Job): "no such batch job", "afterok:5": "no such batch job", // its own
		"afterok:1_7": "no such batch job", "afterok:2_0": "no such batch job", "afterok": "names no job", many.String(): "only after:JOB may have",
	} {
		req := batch("exit 0")
		req.Dependency = text
		if _, err := tn.svc.Run(as(uint32(os.Getuid())), &api.RunRequest{Request: marshal(t, req)}); api.CodeOf(err) != api.InvalidArgument || !strings.Contains(err.Error(), words) {
			t.Errorf("%.40q: %v, want %q", text, err, words)
		}
	}
	req := batch("exit 0")
	req.Dependency, req.Array = fmt.Sprintf("aftercorr:%d", array.Job), "1-3"
	if _, err := tn.svc.Run(as(0), &api.RunRequest{Request: marshal(t, req)}); api.CodeOf(err) != api.InvalidArgument || !strings.Contains(err.Error(), `"1_3"`) {
		t.Errorf("aftercorr: %v", err)
	}
	plain := request("exit", "0")
	for _, change := range []func(*step.Request){func(r *step.Request) { r.Dependency = "singleton" }, func(r *step.Request) { r.Hold = true }} {
		r := plain
		change(&r)
		if _, err := tn.svc.Run(as(1000), &api.RunRequest{Request: marshal(t, r)}); api.CodeOf(err) != api.InvalidArgument {
			t.Errorf("of a step: %v", err)
		}
	}
}

// TestDependencyReads: who asks for many dependencies reads an array once, and nobody waits
// for him meanwhile.
func TestDependencyReads(t *testing.T) {
	tn := fresh(t)
	array := tn.batch(func(r *step.Request) { r.Array, r.Hold = "0-99", true }, "exit 0")
	text := "afterok"
	for i := range 100 {
		text += fmt.Sprintf(":%d_%d", array.Job, i)
	}
	submit := func(text string) error {
		req := batch("exit 0")
		req.Dependency = text
		_, err := tn.svc.Run(as(uint32(os.Getuid())), &api.RunRequest{Request: marshal(t, req)})
		return err
	}
	before := tn.store.db.Stats().TxN
	if err := submit(text); err != nil {
		t.Error(err)
	}
	if n := tn.store.db.Stats().TxN - before; n > 50 {
		t.Errorf("%d reads for the tasks of one array", n)
	}
	tn.queue.change.Lock()
	defer tn.queue.change.Unlock()
	refused := make(chan error, 1)
	go func() { refused <- submit(text + fmt.Sprintf(":%d_100", array.Job)) }()
	select {
	case err := <-refused:
		if api.CodeOf(err) != api.InvalidArgument {
			t.Errorf("a task that there is not: %v", err)
		}
	case <-time.After(testTimeout):
		t.Error("the records are read while the queue may not be changed")
	}
}

// TestDependencyLimit: all that one user's jobs wait for is bounded; three are shown.
func TestDependencyLimit(t *testing.T) {
	tn := fresh(t)
	array := tn.batch(func(r *step.Request) { r.Array, r.Hold = "0-199", true }, "exit 0")
	text := "afterok"
	for i := range 200 {
		text += fmt.Sprintf(":%d_%d", array.Job, i)
	}
	submit := func(uid uint32, text, array string) error {
		req := batch("exit 0")
		req.Dependency, req.Array = text, array
		_, err := tn.svc.Run(as(uid), &api.RunRequest{Request: marshal(t, req)})
		return err
	}
	if err := submit(1000, text, "0-100"); api.CodeOf(err) != api.InvalidArgument || !strings.Contains(err.Error(), "101 tasks that wait for 200 jobs each") {
		t.Errorf("beyond the limit at once: %v", err)
	}
	if err := submit(1000, text, "0-99"); err != nil {
		t.Error(err)
	}
	tn.waits(step.ID{Job: array.Job + 200, Step: step.BatchStep}, "Dependency: afterok:1_0, afterok:1_1, afterok:1_2 and 197 more")
	if err := submit(1000, "afterok:1_0", ""); api.CodeOf(err) != api.ResourceExhausted || !strings.Contains(err.Error(), "wait for 20000 others in all, and 20000 is the limit") {
		t.Errorf("beyond the limit: %v", err)
	}
	if err := submit(1000, "", ""); err != nil {
		t.Errorf("one that waits for nobody: %v", err)
	}
	if err := submit(1001, "afterok:1_0", ""); err != nil {
		t.Errorf("another user's: %v", err)
	}
}

// TestDependencyOfStart: an array that was started by the same look at the queue.
func TestDependencyOfStart(t *testing.T) {
	tn := fresh(t)
	if _, err := tn.svc.Drain(as(0), &api.DrainRequest{Reason: "later"}); err != nil {
		t.Fatal(err)
	}
	held := tn.batch(func(r *step.Request) { r.Array, r.Hold = "0", true }, "exit 0")
	first := tn.after("exit 0", "after:%d", held.Job)
	array := tn.batch(func(r *step.Request) { r.Array = "0-1" }, "wait")
	second := tn.after("exit 0", "after:%d", array.Job)
	tn.waits(second, "Dependency")
	if _, err := tn.svc.Resume(as(0), &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	tn.completes(second)
	tn.waits(first, "Dependency")
}

// TestHold: from the beginning and later, by its user and by root, over a restart.
func TestHold(t *testing.T) {
	dir := t.TempDir()
	tn := start(t, dir, func(c *Config) { c.CPUs = []int{0} })
	uid := uint32(os.Getuid())
	hold := func(who uint32, job uint32, release bool, want api.Code) {
		t.Helper()
		_, err := tn.svc.Hold(as(who), &api.HoldRequest{Job: &api.StepRef{JobId: job}, Release: release})
		if api.CodeOf(err) != want {
			t.Errorf("job %d, release %v: %v, want %v", job, release, err, want)
		}
	}
	held := tn.batch(func(r *step.Request) { r.Hold = true }, "exit 0")
	tn.waits(held, fmt.Sprintf("JobHeldUser: `stepctl release %d`", held.Job))
	first := tn.batch(nil, "wait") // which it does not hold up
	tn.until(first, step.Running)
	hold(uid, first.Job, false, api.FailedPrecondition)
	hold(uid, first.Job, true, api.FailedPrecondition)
	hold(0, 77, false, api.NotFound)
	hold(1500, held.Job, true, api.PermissionDenied)
	array := tn.batch(func(r *step.Request) { r.Array = "0-1" }, "exit 0")
	tn.waits(array, "Resources")
	hold(uid, array.Job, false, api.OK)
	tn.stop()

	tn = start(t, dir, func(c *Config) { c.CPUs = []int{0} })
	defer tn.stop()
	second := step.ID{Job: array.Job + 1, Step: step.BatchStep}
	tn.waits(held, "JobHeldUser")
	tn.waits(second, "JobHeldUser")
	tn.cancelJob(first)
	tn.wait(first)
	task := uint32(1)
	if _, err := tn.svc.Hold(as(0), &api.HoldRequest{Job: &api.StepRef{JobId: array.Job, ArrayTask: &task}, Release: true}); err != nil {
		t.Error(err)
	}
	tn.completes(second)
	tn.waits(array, "JobHeldUser")
	hold(uid, array.Job, true, api.OK)
	hold(uid, held.Job, true, api.OK)
	tn.completes(array, held)
	hold(uid, held.Job, true, api.FailedPrecondition)
}

// TestHoldByRoot: what root holds of another's, only root lets go of.
func TestHoldByRoot(t *testing.T) {
	tn := fresh(t)
	req := batch("exit 0")
	req.Hold = true
	id := tn.run(1000, req)
	for _, c := range []struct {
		who     uint32
		release bool
		want    api.Code
		reason  string
	}{
		{0, false, api.OK, "JobHeldAdmin"}, {1000, true, api.PermissionDenied, "JobHeldAdmin"}, {1000, false, api.OK, "JobHeldAdmin"},
	} {
		_, err := tn.svc.Hold(as(c.who), &api.HoldRequest{Job: &api.StepRef{JobId: id.Job}, Release: c.release})
		if api.CodeOf(err) != c.want {
			t.Errorf("%+v: %v", c, err)
		}
		tn.waits(id, c.reason)
	}
	tn.cancelJob(id)
	if rec := tn.wait(id); rec.State != step.Cancelled {
		t.Errorf("record %+v", rec)
	}
	// A job of its user's that root puts back is root's to release.
	if held := holderOf(api.Peer{UID: 0}, 1000); held != heldByRoot {
		t.Errorf("root holds it as %q", held)
	}
	// Its user is not told to release it, whatever it was put back for before.
	rec := queuedRecord{Job: 7, Held: heldByUser, HeldWhy: "launch failed requeued held"}
	if words := rec.heldWords(); words != "launch failed requeued held: `stepctl release 7` lets it start" {
		t.Errorf("held by its user: %q", words)
	}
	rec.Held = heldByRoot
	if words := rec.heldWords(); words != "JobHeldAdmin: root holds it (launch failed requeued held)" {
		t.Errorf("held by root: %q", words)
	}
}
