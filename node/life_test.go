package node

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/eventlog"
	"stepd/internal/child"
	"stepd/step"
)

// TestStepRuns: from the request to the stored result, with nothing left.
func TestStepRuns(t *testing.T) {
	tn := fresh(t)
	req := request("exit", "3")
	req.NTasks = 2
	id := tn.run(1000, req)
	if id != (step.ID{Job: 1}) {
		t.Errorf("first step is %s, want 1.0", id)
	}
	rec := tn.wait(id)
	if rec.State != step.Failed || rec.ExitCode == nil || *rec.ExitCode != 3 || rec.UID != 1000 || rec.User != "user1000" || rec.Node != "n1" {
		t.Errorf("record %+v", rec)
	}
	if len(rec.Tasks) != 2 || rec.Tasks[1].Status == nil || *rec.Tasks[1].Status != step.ExitedWith(3) {
		t.Errorf("tasks %+v", rec.Tasks)
	}
	if rec.Started == nil || rec.Ended == nil || rec.CPUs != "0-1" || rec.StepdPID == 0 {
		t.Errorf("record %+v", rec)
	}
	tn.nothingLeft(id)
	if u := tn.reg.usage(); u.FreeCPUs != 4 || len(u.jobs) != 0 {
		t.Errorf("usage after the end: %+v", u)
	}
	if stored, err := tn.store.Step(id); err != nil || stored.State != step.Failed {
		t.Errorf("stored %+v, %v", stored, err)
	}
	if jobs, err := tn.store.Jobs(); err != nil || len(jobs) != 0 {
		t.Errorf("jobs in the store: %+v, %v", jobs, err)
	}
}

// TestStepdDies: a stepd that ends without a result fails its step, and the
// reason says how.
func TestStepdDies(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	t.Run("by itself", func(t *testing.T) {
		id := tn.run(1000, request("die", "7"))
		rec := tn.wait(id)
		if rec.State != step.Failed || *rec.ExitCode != 1 || !strings.Contains(rec.Reason, "stepd (pid ") || !strings.HasSuffix(rec.Reason, "exited with code 7 and left no result: dying with 7") {
			t.Errorf("record %+v", rec)
		}
		tn.nothingLeft(id)
	})
	t.Run("by SIGKILL", func(t *testing.T) {
		id := tn.run(1000, request("wait"))
		rec := tn.until(id, step.Running)
		if err := syscall.Kill(rec.StepdPID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		rec = tn.wait(id)
		if rec.State != step.Failed || *rec.ExitCode != 1 || !strings.HasSuffix(rec.Reason, "was killed by SIGKILL") {
			t.Errorf("record %+v", rec)
		}
		task := rec.Tasks[0]
		if task.State != step.TaskExited || task.Status != nil || task.ExitCode != nil || task.Signal != nil {
			t.Errorf("a status was made up: %+v", task)
		}
		tn.nothingLeft(id)
		events := tn.eventLines(id)
		if last := events[len(events)-1]; last.Event != eventlog.EventEnd || last.State != step.Failed {
			t.Errorf("last event %+v", last)
		}
	})
	t.Run("it cannot be started", func(t *testing.T) {
		tn := start(t, t.TempDir(), func(c *Config) { c.StepdPath = "/nonexistent/stepd" })
		defer tn.stop()
		_, err := tn.svc.Run(as(1000), runRequest(request("exit")))
		if api.CodeOf(err) != api.Internal || !strings.Contains(err.Error(), "/nonexistent/stepd") {
			t.Errorf("Run: %v", err)
		}
		id := step.ID{Job: 1}
		if rec := tn.wait(id); rec.State != step.Failed || !strings.Contains(rec.Reason, "/nonexistent/stepd") {
			t.Errorf("record %+v", rec)
		}
		tn.nothingLeft(id)
	})
	t.Run("its container cannot be made", func(t *testing.T) {
		tn := start(t, t.TempDir(), func(c *Config) { c.Containers.(*fakeContainers).fail = errors.New("no space") })
		defer tn.stop()
		if _, err := tn.svc.Run(as(1000), runRequest(request("exit"))); api.CodeOf(err) != api.Internal {
			t.Errorf("Run: %v", err)
		}
		tn.nothingLeft(step.ID{Job: 1})
		if u := tn.reg.usage(); u.FreeCPUs != 4 {
			t.Errorf("usage %+v", u)
		}
	})
}

// TestLinger: a stepd that does not leave after its result is killed.
func TestLinger(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	tn.leaveMax = 50 * time.Millisecond
	id := tn.run(1000, request("linger"))
	if rec := tn.wait(id); rec.State != step.Completed {
		t.Errorf("record %+v", rec)
	}
	tn.nothingLeft(id)
}

// TestToldInExitGrace: a step whose result is known has ended, whatever its stepd waits for; its
// client may still make it FAILED.
func TestToldInExitGrace(t *testing.T) {
	t.Parallel()
	tn := fresh(t)
	id := tn.run(1000, request("linger"))
	rec := tn.until(id, step.Completed)
	for range 2 {
		_, err := tn.svc.Signal(as(1000), &api.SignalRequest{StepRef: ref(id), Signal: int(syscall.SIGUSR1)})
		if api.CodeOf(err) != api.FailedPrecondition || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("Signal: %v", err)
		}
		_, err = tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: api.StepRef{JobID: id.Job}})
		if api.CodeOf(err) != api.FailedPrecondition || !strings.Contains(err.Error(), "has ended") {
			t.Errorf("Cancel: %v", err)
		}
		if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id), Reason: "plugin", Failed: true}); err != nil {
			t.Errorf("a failure on the client's side: %v", err)
		}
	}
	if err := syscall.Kill(rec.StepdPID, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if rec := tn.wait(id); rec.State != step.Failed || rec.Reason != `failed by uid 1000: "plugin"` {
		t.Errorf("%s, %q", rec.State, rec.Reason)
	}
}

// TestForeignStepd: a stepd of another release is not launched with, and the node takes no
// more jobs; one that was running is followed to its end.
func TestForeignStepd(t *testing.T) {
	tn := fresh(t)
	words := []string{"speaks version 2 of the step protocol, and noded 1", tn.cfg.StepdPath, "restart noded"}
	id := tn.run(1000, request("foreign"))
	rec := tn.wait(id)
	for _, w := range words {
		if rec.State != step.Failed || *rec.ExitCode != 1 || !strings.Contains(rec.Reason, w) {
			t.Errorf("record %+v: want %q", rec, w)
		}
		if d := tn.doc(); d.State != "DRAINED" || !strings.Contains(d.Reason, w) {
			t.Errorf("node %+v: want %q", d, w)
		}
	}
	tn.nothingLeft(id)
	if _, err := tn.svc.Resume(as(0), &api.Empty{}); err != nil {
		t.Fatal(err)
	}
	again := tn.batch("foreign")
	if rec := tn.wait(again); rec.State != step.NodeFail || !strings.Contains(rec.Reason, words[0]) {
		t.Errorf("a batch job: %+v", rec)
	}
	if d := tn.doc(); d.State != "DRAINED" || !strings.Contains(d.Reason, words[0]) {
		t.Errorf("node %+v", d)
	}
}

// TestLingerForEver: one that SIGKILL does not end keeps neither its job nor the node,
// which is drained for it as for any such process.
func TestLingerForEver(t *testing.T) {
	die := make(chan struct{})
	tn := stuck(t, t.TempDir(), "", die)
	t.Cleanup(tn.stop)
	tn.leaveMax = 50 * time.Millisecond
	asked := make(chan *child.Process, 1)
	tn.killStepd = func(p *child.Process) error { asked <- p; return nil }
	id := tn.run(1000, request("linger"))
	if rec := tn.wait(id); rec.State != step.Completed {
		t.Errorf("record %+v", rec)
	}
	p := <-asked
	tn.eventually("the end of the job", func() bool { return len(tn.doc().Jobs) == 0 })
	if d := tn.doc(); !strings.HasPrefix(d.State, "DRAIN") || len(d.Unkillable) != 1 || d.Unkillable[0].ID != id {
		t.Errorf("node %+v", d)
	}
	if err := syscall.Kill(p.PID, 0); err != nil {
		t.Fatalf("stepd is gone: %v: nothing was tested", err)
	}
	if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	tn.eventually("the reaping of stepd", func() bool { return errors.Is(syscall.Kill(p.PID, 0), syscall.ESRCH) })
	close(die)
	tn.eventually("the end of the drain", tn.undrained)
}

// TestSignalAndCancel go to stepd, and say when there is none.
func TestSignalAndCancel(t *testing.T) {
	tn := fresh(t)
	id := tn.run(1000, request("wait"))
	tn.until(id, step.Running)
	if _, err := tn.svc.Signal(as(1000), &api.SignalRequest{StepRef: ref(id), Signal: int(syscall.SIGUSR1)}); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(id); rec.Signal == nil || *rec.Signal != int(syscall.SIGUSR1) || rec.ExitCode != nil {
		t.Errorf("record %+v", rec)
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id)}); api.CodeOf(err) != api.FailedPrecondition {
		t.Errorf("Cancel of an ended step: %v", err)
	}
	id = tn.run(1000, request("wait"))
	tn.until(id, step.Running)
	if _, err := tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: api.StepRef{JobID: id.Job}, Reason: "maintenance"}); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(id); rec.State != step.Cancelled || rec.Reason != `cancelled by uid 0: "maintenance"` {
		t.Errorf("record %+v", rec)
	}
}

// TestCancelIsSigned: whatever a client says, the reason names the uid of its peer.
func TestCancelIsSigned(t *testing.T) {
	tn := fresh(t)
	for note, want := range map[string]string{
		"":                          "cancelled by uid 1000",
		"cancelled by uid 0":        `cancelled by uid 1000: "cancelled by uid 0"`,
		`x"; cancelled by uid 0: "`: `cancelled by uid 1000: "x\"; cancelled by uid 0: \""`,
	} {
		id := tn.run(1000, request("wait"))
		tn.until(id, step.Running)
		if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id), Reason: note}); err != nil {
			t.Fatal(err)
		}
		if rec := tn.wait(id); rec.State != step.Cancelled || rec.Reason != want {
			t.Errorf("note %q: %s, %q, want %q", note, rec.State, rec.Reason, want)
		}
	}
}

// TestFailAfterTheEnd: a client whose plugin has failed makes its own step FAILED, once it has
// ended well as well; one that runs is cancelled, and one that has failed keeps its own end.
func TestFailAfterTheEnd(t *testing.T) {
	tn := fresh(t)
	fail := func(uid uint32, id step.ID, reason string) error {
		_, err := tn.svc.Cancel(as(uid), &api.CancelRequest{StepRef: ref(id), Reason: reason, Failed: true})
		return err
	}
	for command, want := range map[string]struct {
		state  step.State
		code   int
		reason string
	}{
		"exit 0": {step.Failed, 1, `failed by uid 1000: "plugin"`}, "exit 3": {step.Failed, 3, ""},
	} {
		id := tn.run(1000, request(strings.Fields(command)...))
		tn.wait(id)
		if err := fail(1001, id, "plugin"); api.CodeOf(err) != api.PermissionDenied {
			t.Errorf("another user: %v", err)
		}
		for _, reason := range []string{"plugin", "again"} {
			if err := fail(1000, id, reason); err != nil {
				t.Fatal(err)
			}
		}
		if rec := tn.wait(id); rec.State != want.state || rec.ExitCode == nil || *rec.ExitCode != want.code || rec.Reason != want.reason {
			t.Errorf("%s: %s, %v, %q; want %+v", command, rec.State, rec.ExitCode, rec.Reason, want)
		}
	}
	id := tn.run(1000, request("wait"))
	tn.until(id, step.Running)
	if err := fail(1000, id, "plugin"); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(id); rec.State != step.Cancelled || rec.Reason != `failed by uid 1000: "plugin"` {
		t.Errorf("%s, %q", rec.State, rec.Reason)
	}
	_, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: api.StepRef{JobID: id.Job}, Failed: true})
	if api.CodeOf(err) != api.InvalidArgument && api.CodeOf(err) != api.NotFound {
		t.Errorf("without a step: %v", err)
	}
}

// TestFailBeforeStored: a client's report that comes between the step's end and its storing is
// not lost.
func TestFailBeforeStored(t *testing.T) {
	tn := fresh(t)
	id := tn.run(1000, request("wait"))
	rec := tn.until(id, step.Running)
	f := tn.reg.follower(id)
	f.mu.Lock()
	f.moveLocked(stepSettled)
	f.mu.Unlock()
	failed := make(chan error, 1)
	go func() {
		_, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(id), Reason: "plugin", Failed: true})
		failed <- err
	}()
	select {
	case err := <-failed:
		t.Errorf("answered before the end was stored: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	end := rec
	end.State, end.ExitCode = step.Completed, new(0)
	f.settle(&end) // it logs a move that was made above
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(rec.StepdPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if rec := tn.wait(id); rec.State != step.Failed || rec.Reason != `failed by uid 1000: "plugin"` {
		t.Errorf("%s, %q", rec.State, rec.Reason)
	}
}

// TestJobEndsWithItsStep: a step in a job shares its CPUs, and ends with the
// step that the job was made for.
func TestJobEndsWithItsStep(t *testing.T) {
	tn := fresh(t)
	outer := request("wait")
	outer.NTasks = 2
	first := tn.run(1000, outer)
	tn.until(first, step.Running)
	inner := request("wait")
	inner.Job = &first.Job
	second := tn.run(1000, inner)
	if second != (step.ID{Job: first.Job, Step: 1}) {
		t.Errorf("second step is %s", second)
	}
	tn.until(second, step.Running)
	if u := tn.reg.usage(); u.FreeCPUs != 2 {
		t.Errorf("%d CPUs are free, want 2", u.FreeCPUs)
	}
	if _, err := tn.svc.Cancel(as(1000), &api.CancelRequest{StepRef: ref(first)}); err != nil {
		t.Fatal(err)
	}
	tn.wait(first)
	if rec := tn.wait(second); rec.State != step.Cancelled || rec.Reason != "its job has ended" {
		t.Errorf("record %+v", rec)
	}
	tn.nothingLeft(first)
	tn.nothingLeft(second)
	if _, err := tn.svc.Run(as(1000), runRequest(inner)); api.CodeOf(err) != api.NotFound {
		t.Errorf("a step of an ended job: %v", err)
	}
}

// TestEvents are the lines of noded and of stepd; with follow until the end.
func TestEvents(t *testing.T) {
	tn := fresh(t)
	fifo := filepath.Join(tn.dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	id := tn.run(1000, request("fifo", fifo))
	tn.until(id, step.Running)
	var got []string
	followed := make(chan error, 1)
	sawState := make(chan struct{})
	go func() {
		followed <- tn.API().events(context.Background(), id, true, func(line []byte) error {
			var e eventlog.Event
			if err := json.Unmarshal(line, &e); err != nil {
				return err
			}
			got = append(got, e.Event)
			if e.Event == eventlog.EventState {
				close(sawState)
			}
			return nil
		})
	}()
	<-sawState
	if err := os.WriteFile(fifo, []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-followed:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(testTimeout):
		t.Fatal("follow does not end")
	}
	if want := "request accepted state end"; strings.Join(got, " ") != want {
		t.Errorf("followed %q, want %q", got, want)
	}
	if all := tn.eventLines(id); len(all) != 4 {
		t.Errorf("events %+v", all)
	}
}

func (tn *testNode) eventLines(id step.ID) (all []eventlog.Event) {
	tn.t.Helper()
	err := tn.API().events(context.Background(), id, false, func(line []byte) error {
		var e eventlog.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return err
		}
		all = append(all, e)
		return nil
	})
	if err != nil {
		tn.t.Fatal(err)
	}
	return all
}

// TestNoLeaks: steps cost noded nothing that stays.
func TestNoLeaks(t *testing.T) {
	count := func() (fds, goroutines int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries), runtime.NumGoroutine()
	}
	tn := start(t, t.TempDir(), nil)
	tn.wait(tn.run(1000, request("exit", "0")))
	tn.work.Wait()
	fds, goroutines := count()
	for range 5 {
		a, b := tn.run(1000, request("exit", "0")), tn.run(1000, request("die", "1"))
		tn.wait(a)
		tn.wait(b)
	}
	tn.work.Wait()
	deadline := time.Now().Add(testTimeout)
	for {
		f, g := count()
		if f <= fds && g <= goroutines {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors and %d goroutines, before 10 steps %d and %d", f, g, fds, goroutines)
		}
		time.Sleep(5 * time.Millisecond)
	}
	tn.stop()
}

// TestStepMoves: a step goes on through its phases and never back, and an illegal move is named.
func TestStepMoves(t *testing.T) {
	phases := []stepPhase{stepReserved, stepLaunching, stepStarting, stepFollowed, stepSettled, stepDropped}
	for i, from := range phases {
		for _, to := range stepMoves[from] {
			if slices.Index(phases, to) <= i {
				t.Errorf("a step that is %s becomes %s", from, to)
			}
		}
	}
	log := logrus.New()
	var text strings.Builder
	log.SetOutput(&text)
	f := &follower{log: logrus.NewEntry(log), phase: stepSettled}
	f.moveLocked(stepLaunching)
	if f.phase != stepSettled || !strings.Contains(text.String(), "the step is settled and cannot become launching") {
		t.Errorf("the step is %s, and the log has %q", f.phase, text.String())
	}
}
