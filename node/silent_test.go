package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/child"
	"stepd/step"
)

// TestSilentStepd: a step whose stepd does not answer is cancelled, or killed, all the same: after
// UnkillableStepTimeout stepd is killed with it. Other requests fail.
func TestSilentStepd(t *testing.T) {
	// Longer than askMax, also on a busy machine: a client is answered before stepd is killed.
	tn := start(t, t.TempDir(), func(c *Config) { c.unkillable = 300 * time.Millisecond })
	t.Cleanup(func() { tn.stop() })
	tn.askMax = 30 * time.Millisecond
	for name, end := range map[string]func(id step.ID) (*api.EndReply, error){
		"cancelled by uid 0": func(id step.ID) (*api.EndReply, error) {
			return tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: ref(id)})
		},
		"killed by SIGKILL": func(id step.ID) (*api.EndReply, error) {
			return tn.svc.Signal(as(0), &api.SignalRequest{StepRef: ref(id), Signal: int(unix.SIGKILL)})
		},
	} {
		id := tn.run(1000, request("silent"))
		tn.reg.follower(id).update(func(rec *step.Record) { // its tasks began long ago, and no exec is known
			rec.Started = new(time.Now().Add(-time.Hour))
			rec.Submitted = rec.Started.Add(-time.Second)
			rec.Tasks = []step.Task{{State: step.TaskStarting}}
		})
		if _, err := tn.svc.Signal(as(0), &api.SignalRequest{StepRef: ref(id), Signal: int(unix.SIGTERM)}); err == nil || !strings.Contains(err.Error(), "stepd does not answer within 30ms") {
			t.Errorf("SIGTERM: %v", err)
		}
		stepd := tn.reg.follower(id).record().StepdPID
		for again := range 2 { // a second one changes nothing
			r, err := end(id)
			if err != nil && (again == 0 || api.CodeOf(err) != api.FailedPrecondition) {
				t.Fatalf("%s: %v", name, err)
			}
			note := fmt.Sprintf("stepd of step %s (pid %d) does not answer: it is killed with its step at ", id, stepd)
			if again == 0 && (len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], note)) {
				t.Errorf("%s: the client is told %q, want %q", name, r.Notes, note)
			}
		}
		rec := tn.wait(id)
		if rec.State != step.Cancelled || !strings.HasPrefix(rec.Reason, name+"; stepd (pid ") || !strings.HasSuffix(rec.Reason, ") did not answer for 300ms and was killed") {
			t.Errorf("step %s: %s %q", id, rec.State, rec.Reason)
		}
		if task := rec.Tasks[0]; len(rec.Tasks) != 1 || task.State != step.TaskExited || task.Status != nil {
			t.Errorf("step %s: its task, which may have exec'd, is %+v", id, task)
		}
		tn.nothingLeft(id)
	}
	tn.idle()
}

// limited is a request for a step with a time limit in seconds.
func limited(seconds int, command ...string) step.Request {
	req := request(command...)
	req.TimeLimitS = seconds
	return req
}

// TestSilentOverTime: a step whose stepd does not answer ends by its time limit all the same, but
// not while the spool does not answer, for which stepd may wait.
func TestSilentOverTime(t *testing.T) {
	tn := start(t, t.TempDir(), func(c *Config) { c.unkillable = 30 * time.Millisecond })
	t.Cleanup(func() { tn.stop() })
	tn.reg.killWait, tn.askMax = 0, 30*time.Millisecond
	id := tn.run(1000, limited(1, "silent"))
	goOn := tn.stopSpool()
	select {
	case <-tn.reg.follower(id).ended:
		t.Error("the step was ended while the spool did not answer")
	case <-time.After(1500 * time.Millisecond): // its limit, and twice each of the others
	}
	goOn()
	rec := tn.wait(id)
	want := fmt.Sprintf("its time limit of 1s has come (--time); stepd (pid %d) did not answer for 30ms and was killed", rec.StepdPID)
	if rec.State != step.Timeout || rec.Reason != want {
		t.Errorf("step %s: %s %q, want %q", id, rec.State, rec.Reason, want)
	}
	tn.idle()
}

// TestGreetsOverTime: a step is left to a stepd that greets noded, though it answers no request
// that waits for the spool.
func TestGreetsOverTime(t *testing.T) {
	tn := start(t, t.TempDir(), func(c *Config) { c.unkillable = 30 * time.Millisecond })
	t.Cleanup(func() { tn.stop() })
	tn.reg.killWait = 0
	rec := tn.wait(tn.run(1000, limited(1, "greet", "4"))) // noded's own connection, and three after the limit
	if rec.State != step.Failed || rec.ExitCode == nil || *rec.ExitCode != 7 {
		t.Errorf("step %s: %s %q", rec.ID, rec.State, rec.Reason)
	}
	tn.idle()
}

// TestTimeByStepd: neither a clock that is set nor the time that a step has waited for its launch
// counts, before and after noded's restart.
func TestTimeByStepd(t *testing.T) {
	dir := t.TempDir()
	impatient := func(c *Config) { c.unkillable = 30 * time.Millisecond }
	tn := start(t, dir, impatient)
	tn.reg.killWait, tn.askMax = 0, 30*time.Millisecond
	id := tn.run(1000, limited(3600, "deaf"))
	tn.until(id, step.Running)
	f := tn.reg.follower(id)
	f.update(func(rec *step.Record) { rec.Submitted = rec.Submitted.AddDate(0, 0, -1) })
	if err := tn.store.Put(f.record()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-f.ended:
		t.Errorf("%+v", f.record())
	case <-time.After(300 * time.Millisecond):
	}
	tn.stop()

	cfg := testConfig(t, dir)
	impatient(&cfg)
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.reg.killWait, n.askMax = 0, 30*time.Millisecond
	tn = &testNode{Node: n, svc: newService(n), tracker: cfg.Tracker.(*fakeTracker), containers: cfg.Containers.(*fakeContainers), dir: dir, t: t}
	t.Cleanup(tn.stop)
	if err := n.Recover(t.Context()); err != nil { // it waits for the stepd for helloMax
		t.Fatal(err)
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(id); rec.State != step.Cancelled {
		t.Errorf("step %s: %s %q", id, rec.State, rec.Reason)
	}
	tn.idle()
}

// TestSilentForEver: one that SIGKILL does not end, since it is frozen by cgroup v1, keeps neither
// its step nor its job.
func TestSilentForEver(t *testing.T) {
	die := make(chan struct{})
	tn := stuck(t, t.TempDir(), "", die)
	t.Cleanup(tn.stop)
	tn.cfg.unkillable, tn.askMax, tn.leaveMax = 30*time.Millisecond, 30*time.Millisecond, 50*time.Millisecond
	asked := make(chan *child.Process, 1)
	tn.killStepd = func(p *child.Process) error { asked <- p; return nil }
	id := tn.run(1000, request("silent"))
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: ref(id)}); err != nil {
		t.Fatal(err)
	}
	rec := tn.wait(id)
	if rec.State != step.Cancelled || !strings.Contains(rec.Reason, "did not answer for 30ms and was killed") {
		t.Errorf("step %s: %s %q", id, rec.State, rec.Reason)
	}
	tn.eventually("the end of the job", func() bool { return len(tn.doc().Jobs) == 0 })
	if err := unix.Kill((<-asked).PID, unix.SIGKILL); err != nil {
		t.Errorf("stepd is gone: %v: nothing was tested", err)
	}
	close(die)
	tn.eventually("the end of the drain", tn.undrained)
}
