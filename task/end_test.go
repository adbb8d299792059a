package task

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// A task that SIGKILL does not end: the step ends all the same, within one
// timeout, and everybody hears who is left.
func TestUnkillable(t *testing.T) {
	r := newRig(t)
	left := &launch.SurvivorsError{
		Where: "w", Total: 9, Cause: context.DeadlineExceeded,
		Survivors: []step.Survivor{{PID: 5001, Comm: "cp", State: "D", Grade: step.GradeDisk}},
	}
	r.fail["kill"], r.fail["destroy"] = left, left
	over := make(chan struct{})
	r.during["wait"] = func() {
		for r.st.Record().Tasks[1].State != step.TaskRunning {
			time.Sleep(time.Millisecond)
		}
		r.st.Cancel("enough")
		<-over
	}
	r.ends = nil
	rec := r.run(t)
	close(over)
	if rec.State != step.Cancelled || rec.ExitCode == nil || *rec.ExitCode != 1 || rec.SurvivorsTotal != 9 || len(rec.Survivors) != 1 {
		t.Errorf("record: %+v", rec)
	}
	if rec.Tasks[1].State != step.TaskRunning || rec.Tasks[1].ExitCode != nil {
		t.Errorf("the task that does not die: %+v", rec.Tasks[1])
	}
	want := `cannot kill all processes of w: 9 left: pid 5001 "cp" (state D: uninterruptible sleep), ...: context deadline exceeded`
	if rec.Reason != "enough; "+want {
		t.Errorf("reason %q", rec.Reason)
	}
	told := 0
	for _, line := range r.said {
		if strings.Contains(line, want) {
			told++
		}
	}
	if told != 1 {
		t.Errorf("the user was told %d times: %q", told, r.said)
	}
	kills := 0
	for _, c := range r.calls {
		if c == "kill" {
			kills++
		}
	}
	if kills != 1 || slices.Contains(r.calls, "exit") || !slices.Contains(r.calls, "destroy") {
		t.Errorf("calls: %v", r.calls)
	}
}

// TestUnkillableBeforeExec: a task that hangs in the kernel before its exec, as in the opening
// of its output on a file server that is gone, has not ended well when its step is cancelled.
func TestUnkillableBeforeExec(t *testing.T) {
	r := newRig(t)
	r.fail["kill"] = &launch.SurvivorsError{Where: "w", Total: 1, Cause: context.DeadlineExceeded}
	r.places[0] = launch.HostPlace{Plugin: -1, Stage: "stdio"}
	over := make(chan struct{})
	r.during["wait"] = func() { r.st.Cancel("enough"); <-over }
	r.ends = nil
	rec := r.run(t)
	close(over)
	if rec.State != step.Cancelled || *rec.ExitCode != 1 || !strings.HasPrefix(rec.Reason, "enough; ") {
		t.Errorf("%s, %d, %q", rec.State, *rec.ExitCode, rec.Reason)
	}
	if task := rec.Tasks[0]; task.State != step.TaskFailed || task.Stage != "stdio" || task.ExitCode != nil {
		t.Errorf("the task: %+v", task)
	}
}

// A daemon that does not die is not the tasks' fault.
func TestUnkillableDaemon(t *testing.T) {
	r := newRig(t)
	r.left = []int{77}
	left := &launch.SurvivorsError{Where: "w", Total: 1, Cause: context.DeadlineExceeded, Survivors: []step.Survivor{{PID: 77}}}
	r.fail["kill"], r.fail["destroy"] = left, left
	rec := r.run(t)
	if rec.State != step.Completed || *rec.ExitCode != 0 || rec.SurvivorsTotal != 1 || !strings.Contains(rec.Reason, "pid 77") {
		t.Errorf("record: %+v", rec)
	}
	if !slices.Contains(r.calls, "exit") {
		t.Errorf("the exit hooks were not called: %v", r.calls)
	}
}

// What plugins have left in slurm_spank_exit is kept beyond the end of Run, where the hooks
// have come back and a grace is configured, until EndHelpers.
func TestExitHelpers(t *testing.T) {
	for name, c := range map[string]struct {
		grace, kept int
		fail        string
		keeps       bool
	}{
		"left":             {2, 1, "", true},
		"nothing is left":  {2, 0, "", false},
		"no grace":         {0, 1, "", false},
		"the hook crashed": {2, 1, "exit", false},
		"init has failed":  {2, 1, "init", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.spec.Spank.ExitGraceS, r.kept = c.grace, c.kept
			if c.fail != "" {
				r.fail[c.fail] = launch.ErrHostGone
			}
			r.run(t)
			if slices.Contains(r.calls, "destroy") == c.keeps {
				t.Errorf("calls before the end was reported: %v", r.calls)
			}
			if err := r.st.EndHelpers(t.Context()); err != nil {
				t.Error(err)
			}
			if n := len(r.calls); r.calls[n-1] != "destroy" && c.keeps || !slices.Contains(r.calls, "destroy") {
				t.Errorf("calls: %v", r.calls)
			}
		})
	}
}

func TestKillBudget(t *testing.T) {
	s := &killBudget{seconds: 3600}
	ctx, cancel := s.context()
	defer cancel()
	first, _ := ctx.Deadline()
	s.began = s.began.Add(-time.Hour)
	ctx, cancel = s.context()
	defer cancel()
	spent, _ := ctx.Deadline()
	if d := time.Until(first); d < 59*time.Minute {
		t.Errorf("the first kill has %v", d)
	}
	if d := time.Until(spent); d > lastStrike || d < lastStrike/2 {
		t.Errorf("a kill after the timeout has %v", d)
	}
	if s.spent(nil); !s.began.IsZero() {
		t.Error("a kill that came to its end still counts")
	}
}

func FuzzParseZombie(f *testing.F) {
	stat := "12 (a ) Z b) Z 1 12 12 0 -1 4227084 0 0 0 0 0 0 0 0 20 0 1 0 100 0 0 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 256"
	if st, ok := parseZombie([]byte(stat)); !ok || st != step.ExitedWith(1) {
		f.Fatalf("%v, %v", st, ok)
	}
	if _, ok := parseZombie([]byte(strings.Replace(stat, ") Z 1", ") S 1", 1))); ok {
		f.Fatal("a living process has ended")
	}
	f.Add([]byte(stat))
	f.Add([]byte("1 (x"))
	f.Fuzz(func(_ *testing.T, b []byte) { parseZombie(b) })
}
