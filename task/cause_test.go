package task

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// outcome is what a cause makes of a step.
type outcome struct {
	state   step.State
	code    int
	aborted bool
	reason  string // how it begins
}

// check compares a record with the outcome.
func (o outcome) check(t *testing.T, rec step.Record) {
	t.Helper()
	if rec.State != o.state || *rec.ExitCode != o.code || rec.Aborted != o.aborted || !strings.HasPrefix(rec.Reason, o.reason) {
		t.Errorf("%s, code %d, aborted %v, %q; want %+v", rec.State, *rec.ExitCode, rec.Aborted, rec.Reason, o)
	}
}

// hostDies is the outcome of a step whose plugins' host dies while the tasks run.
var hostDies = outcome{step.Failed, 1, false, "spankhost (pid 4242): killed by SIGSEGV"}

// endings end a running step, whose two tasks SIGTERM kills then.
var endings = map[string]struct {
	end func(r *rig, down func(error))
	outcome
}{
	"cancel": {func(r *rig, _ func(error)) { r.st.Cancel("enough") }, outcome{step.Cancelled, 143, false, "enough"}},
	"abort": {func(r *rig, _ func(error)) { r.st.mpiAbort(1, 9, "no way") },
		outcome{step.Failed, 9, true, "task 1: MPI abort with code 9: no way"}},
	"memory limit": {func(r *rig, _ func(error)) { r.st.OverMemory("2 of 1") },
		outcome{step.OutOfMemory, 143, false, "Step 77.0 exceeded its memory limit: 2 of 1"}},
	"group kill": {func(r *rig, _ func(error)) { r.st.OutOfMemory(step.OOMKill{PID: 5000}) },
		outcome{step.OutOfMemory, 143, false, step.OOMKill{PID: 5000}.String()}},
	"time limit": {func(r *rig, _ func(error)) {
		l := &timeLimit{limit: time.Nanosecond, warn: -1}
		defer l.stop()
		r.st.checkTime(l)
	}, outcome{step.Timeout, 143, false, "its time limit of 1ns has come (--time)"}},
	"bad exit": {func(r *rig, _ func(error)) { r.st.endBadly(0, step.ExitedWith(3)) },
		outcome{step.Failed, 143, false, "task 0: Terminated"}},
	"host down": {func(_ *rig, down func(error)) { down(errors.New("stepd got SIGTERM")) },
		outcome{step.NodeFail, 143, false, "stepd got SIGTERM"}},
}

// newCauseRig is a step whose tasks die of SIGTERM. down ends it as stepd's own end does.
func newCauseRig(t *testing.T) (r *rig, down func(error)) {
	r = newRig(t)
	r.spec.Confine.OOMGroup = step.OOMGroupStep
	ctx, cancel := context.WithCancelCause(context.Background())
	t.Cleanup(func() { cancel(nil) })
	r.ctx = ctx
	r.ends = []launch.TaskEnd{terminated(0), terminated(1)}
	return r, func(why error) { cancel(why); <-r.st.Ending() }
}

// TestFirstCauseStays ends a step for one cause and then for another.
func TestFirstCauseStays(t *testing.T) {
	for first, c := range endings {
		for second, then := range endings {
			if first == second || first == "bad exit" && second == "group kill" {
				continue // what kills a task may be heard after its end
			}
			t.Run(first+" then "+second, func(t *testing.T) {
				r, down := newCauseRig(t)
				r.during["wait"] = func() { c.end(r, down); then.end(r, down) }
				c.check(t, r.run(t))
			})
		}
		t.Run(first+" then the plugins' host dies", func(t *testing.T) {
			r, down := newCauseRig(t)
			ends := r.ends
			r.ends, r.fail["wait"] = nil, launch.ErrHostGone
			r.during["wait"] = func() {
				c.end(r, down)
				for id := range ends {
					r.st.ChildEnded(5000+id, ends[id].Status, nil)
				}
				r.die(step.SignaledBy(syscall.SIGSEGV))
			}
			c.check(t, r.run(t))
		})
		t.Run("the plugins' host dies then "+first, func(t *testing.T) {
			r, down := newCauseRig(t)
			r.ends, r.fail["wait"] = nil, launch.ErrHostGone
			r.during["wait"] = func() { r.die(step.SignaledBy(syscall.SIGSEGV)) }
			r.during["pids"] = func() { c.end(r, down) }
			hostDies.check(t, r.run(t))
		})
	}
}

// TestFailureAfterVoidCancel: a cancel that comes when all tasks have ended well ends
// nothing, and a failure after it is the step's.
func TestFailureAfterVoidCancel(t *testing.T) {
	for name, c := range map[string]struct {
		call  string
		place launch.HostPlace
	}{
		"while the tasks are reaped": {"wait", launch.HostPlace{Plugin: -1}},
		"in the exit hooks":          {"exit", launch.HostPlace{Hook: "slurm_spank_exit", Plugin: 0}},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := newCauseRig(t)
			r.ends = []launch.TaskEnd{{LocalID: 0}, {LocalID: 1}}
			if c.call == "wait" {
				r.ends = nil
			}
			r.places[-1], r.fail[c.call] = c.place, launch.ErrHostGone
			r.during[c.call] = func() {
				r.st.Cancel("too late")
				for id := range 2 {
					r.st.ChildEnded(5000+id, 0, nil)
				}
				r.die(step.SignaledBy(syscall.SIGSEGV))
			}
			if rec := r.run(t); rec.State != step.Failed || *rec.ExitCode != 1 || !strings.Contains(rec.Reason, "killed by SIGSEGV") {
				t.Errorf("%s, code %d, %q", rec.State, *rec.ExitCode, rec.Reason)
			}
		})
	}
}

// TestCausesAtOnce ends a step for two causes at the same time: all of its end comes from
// one of them.
func TestCausesAtOnce(t *testing.T) {
	t.Parallel()
	abort, cancel := endings["abort"], endings["cancel"]
	for range 1000 {
		r, down := newCauseRig(t)
		r.during["wait"] = func() {
			var both sync.WaitGroup
			start := make(chan struct{})
			both.Go(func() { <-start; abort.end(r, down) })
			both.Go(func() { <-start; cancel.end(r, down) })
			close(start)
			both.Wait()
		}
		rec := r.run(t)
		if rec.State == step.Failed {
			abort.check(t, rec)
		} else {
			cancel.check(t, rec)
		}
		if t.Failed() {
			return
		}
	}
}
