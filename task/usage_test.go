package task

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

// fakeAccounting notes its calls in the rig's list.
type fakeAccounting struct{ r *rig }

func (a fakeAccounting) Begin(host int, inside bool, tasks []int) {
	a.r.note(fmt.Sprintf("account %d %v %v", host, inside, tasks))
}
func (a fakeAccounting) HostMoved() { a.r.note("host moved") }
func (a fakeAccounting) TaskEnded(e launch.TaskEnd) {
	a.r.note(fmt.Sprintf("used %d %v", e.LocalID, e.Lost))
}
func (a fakeAccounting) OrphanEnded(pid int, _ *launch.Usage) {
	a.r.note(fmt.Sprintf("orphan %d", pid))
}
func (a fakeAccounting) Sample() { a.r.note("sample") }
func (a fakeAccounting) Finish() { a.r.note("account done") }
func (a fakeAccounting) Fill(rec *step.Record) {
	n := 1.5
	rec.Usage = &step.StepUsage{Used: step.Used{CPUSeconds: &n}}
}

// It begins when all tasks are tracked, and reads the last figures when they are
// dead and before anything is removed.
func TestAccountingOrder(t *testing.T) {
	r := newRig(t)
	r.acct = fakeAccounting{r}
	r.ends[1].Lost = true
	r.during["wait"] = func() {
		r.st.ChildEnded(777, 0, nil)
		if rec := r.st.Stat(); rec.Usage == nil || rec.State != step.Running {
			t.Errorf("stat of a running step: %+v", rec)
		}
	}
	rec := r.run(t)
	want := slices.Clone(launchCalls)
	want = slices.Insert(want, slices.Index(want, "post_fork"), "account 4242 false [5000 5001]")
	wantCalls(t, r, append(want, "wait", "orphan 777", "sample", "used 0 false", "used 1 true",
		"pids", "account done", "exit", "close mpi", "destroy", "close host")...)
	if rec.Usage == nil || *rec.Usage.CPUSeconds != 1.5 {
		t.Errorf("usage: %+v", rec.Usage)
	}
}

// A step over its memory limit is killed at once, without the grace of SIGTERM.
func TestOverMemory(t *testing.T) {
	r := newRig(t)
	r.cgroup = 7
	r.acct = fakeAccounting{r}
	killed := make(chan struct{})
	r.ends = []launch.TaskEnd{{LocalID: 0, Status: step.SignaledBy(syscall.SIGKILL)}, {LocalID: 1, Status: step.SignaledBy(syscall.SIGKILL)}}
	r.during["signal SIGKILL"] = func() { close(killed) }
	r.during["wait"] = func() {
		r.st.OverMemory("it uses 60 MB, and may 50 MB")
		<-killed
	}
	rec := r.run(t)
	if rec.State != step.OutOfMemory || rec.ExitCode == nil || *rec.ExitCode != 137 {
		t.Errorf("ended %s, %v", rec.State, rec.ExitCode)
	}
	if !strings.Contains(rec.Reason, "exceeded its memory limit: it uses 60 MB, and may 50 MB") || !strings.Contains(strings.Join(r.said, "\n"), rec.Reason) {
		t.Errorf("the reason is %q; said: %q", rec.Reason, r.said)
	}
	if slices.Contains(r.calls, "signal SIGTERM") {
		t.Errorf("calls: %v", r.calls)
	}
}
