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
	tn := start(t, t.TempDir(), func(c *Config) { c.unkillable = 30 * time.Millisecond })
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
		if rec.State != step.Cancelled || !strings.HasPrefix(rec.Reason, name+"; stepd (pid ") || !strings.HasSuffix(rec.Reason, ") did not answer for 30ms and was killed") {
			t.Errorf("step %s: %s %q", id, rec.State, rec.Reason)
		}
		tn.nothingLeft(id)
	}
	tn.idle()
}

// TestSilentOverTime: a step whose stepd does not answer ends by its time limit all the same, and
// one whose stepd answers is left to it.
func TestSilentOverTime(t *testing.T) {
	tn := start(t, t.TempDir(), func(c *Config) { c.unkillable = 30 * time.Millisecond })
	t.Cleanup(func() { tn.stop() })
	tn.reg.killWait, tn.askMax = 0, time.Second
	limited := func(command ...string) step.ID {
		req := request(command...)
		req.TimeLimitS = 1
		return tn.run(1000, req)
	}
	answers, silent := limited("wait"), limited("silent")
	tn.until(answers, step.Running)
	rec := tn.wait(silent)
	want := fmt.Sprintf("its time limit of 1s has come (--time); stepd (pid %d) did not answer for 1s and was killed", rec.StepdPID)
	if rec.State != step.Timeout || rec.Reason != want {
		t.Errorf("step %s: %s %q, want %q", silent, rec.State, rec.Reason, want)
	}
	if rec := tn.reg.follower(answers).record(); rec.State != step.Running {
		t.Errorf("step %s, whose stepd answers: %s %q", answers, rec.State, rec.Reason)
	}
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: ref(answers)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(answers)
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
