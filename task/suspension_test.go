package task

import (
	"errors"
	"slices"
	"testing"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// atOnce makes the 2 s between SIGTSTP and the freezer short.
func atOnce(r *rig) { r.st.suspension.grace = time.Millisecond }

// after returns the calls behind the first of name.
func (r *rig) after(name string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls[slices.Index(r.calls, name)+1:])
}

func TestSuspendRunning(t *testing.T) {
	r := newRig(t)
	r.cgroup = 7
	r.during["wait"] = func() {
		atOnce(r)
		if err := r.st.Resume(0); err == nil {
			t.Error("a running step was resumed")
		}
		if err := r.st.Suspend(1000); err != nil {
			t.Error(err)
		}
		if rec := r.st.Record(); rec.Suspended == nil || *rec.SuspendedBy != 1000 || rec.State != step.Running {
			t.Errorf("suspended: %+v", rec)
		}
		if err := r.st.Signal(15, "tasks"); err == nil {
			t.Error("a suspended step took a signal")
		}
		// Root takes it over, and then it is root's.
		if err := r.st.Suspend(0); err != nil {
			t.Error(err)
		}
		if err := r.st.Resume(1000); err == nil {
			t.Error("the owner has resumed what root suspended")
		}
		if err := r.st.Resume(0); err != nil {
			t.Error(err)
		}
		want := []string{"evict", "signal SIGTSTP", "freeze", "thaw", "signal SIGCONT"}
		if got := r.after("wait"); !slices.Equal(got, want) {
			t.Errorf("calls: %v, want %v", got, want)
		}
	}
	rec := r.run(t)
	if rec.State != step.Completed || rec.Suspended != nil || rec.SuspendedSeconds <= 0 {
		t.Errorf("record: %+v", rec)
	}
}

// A cancel of a suspended step is SIGKILL, and no SIGTERM, which it would not hear.
func TestCancelSuspended(t *testing.T) {
	r := newRig(t)
	r.cgroup = 7
	cancelled := make(chan struct{})
	r.during["wait"] = func() {
		atOnce(r)
		if err := r.st.Suspend(0); err != nil {
			t.Error(err)
		}
		r.st.Cancel("enough")
		<-cancelled
	}
	r.during["kill"] = func() { close(cancelled) }
	r.ends = []launch.TaskEnd{{LocalID: 0, Status: step.SignaledBy(9)}, {LocalID: 1, Status: step.SignaledBy(9)}}
	rec := r.run(t)
	want := []string{"evict", "signal SIGTSTP", "freeze", "signal SIGKILL", "kill"}
	if got := r.after("wait"); !slices.Equal(got[:len(want)], want) {
		t.Errorf("calls: %v, want %v first", got, want)
	}
	if rec.State != step.Cancelled || rec.Suspended != nil {
		t.Errorf("record: %+v", rec)
	}
}

// What comes within the 2 s ends them.
func TestSuspendAborted(t *testing.T) {
	for name, end := range map[string]func(*Step) error{
		"resume": func(s *Step) error { return s.Resume(0) },
		"cancel": func(s *Step) error { return s.Cancel("enough") },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.during["wait"] = func() {
				r.st.suspension.grace = time.Hour
				stopped := make(chan error)
				go func() { stopped <- r.st.Suspend(0) }()
				for !slices.Contains(r.after("wait"), "signal SIGTSTP") {
					time.Sleep(time.Millisecond)
				}
				if err := end(r.st); err != nil {
					t.Error(err)
				}
				if err := <-stopped; !errors.Is(err, errWoken) {
					t.Errorf("suspend: %v", err)
				}
				if rec := r.st.Record(); rec.Suspended != nil {
					t.Errorf("suspended since %v", rec.Suspended)
				}
			}
			rec := r.run(t)
			calls := r.after("wait")
			if !slices.Contains(calls, "thaw") || !slices.Contains(calls, "signal SIGCONT") || slices.Contains(calls, "freeze") {
				t.Errorf("calls: %v", calls)
			}
			if !rec.State.Final() {
				t.Errorf("record: %+v", rec)
			}
		})
	}
}

// suspendSlowly begins a suspend that stays between SIGTSTP and the freezer for grace.
func (r *rig) suspendSlowly(grace time.Duration) (stopped chan error) {
	r.st.suspension.grace = grace
	stopped = make(chan error, 1)
	go func() { stopped <- r.st.Suspend(1000) }()
	for !slices.Contains(r.after("wait"), "signal SIGTSTP") {
		time.Sleep(time.Millisecond)
	}
	return stopped
}

// TestSuspendTwice: a suspend during another one returns with it.
func TestSuspendTwice(t *testing.T) {
	t.Run("and the tasks stand still", func(t *testing.T) {
		r := newRig(t)
		r.during["wait"] = func() {
			first := r.suspendSlowly(100 * time.Millisecond)
			if err := r.st.Suspend(0); err != nil {
				t.Error(err)
			}
			rec := r.st.Record()
			if rec.Suspended == nil || *rec.SuspendedBy != 0 || !slices.Contains(r.after("wait"), "freeze") {
				t.Errorf("it has returned with %+v after %v", rec.Suspended, r.after("wait"))
			}
			if err := <-first; err != nil {
				t.Error(err)
			}
		}
		r.run(t)
		if calls := r.after("wait"); len(slices.DeleteFunc(calls, func(c string) bool { return c != "signal SIGTSTP" })) != 1 {
			t.Errorf("calls: %v", r.after("wait"))
		}
	})
	t.Run("and it is undone", func(t *testing.T) {
		r := newRig(t)
		r.during["wait"] = func() {
			first := r.suspendSlowly(time.Hour)
			second := make(chan error)
			go func() { second <- r.st.Suspend(1000) }()
			select {
			case err := <-second:
				t.Errorf("it has returned before the first: %v", err)
				return
			case <-time.After(20 * time.Millisecond):
			}
			if err := r.st.Resume(1000); err != nil {
				t.Error(err)
			}
			for _, c := range []chan error{first, second} {
				if err := <-c; !errors.Is(err, errWoken) {
					t.Errorf("suspend: %v", err)
				}
			}
		}
		r.run(t)
	})
	t.Run("and root takes it over", func(t *testing.T) {
		r := newRig(t)
		r.during["wait"] = func() {
			atOnce(r)
			for _, by := range []uint32{1000, 0, 1000} {
				if err := r.st.Suspend(by); err != nil {
					t.Error(err)
				}
			}
			if rec := r.st.Record(); *rec.SuspendedBy != 0 {
				t.Errorf("suspended by %d", *rec.SuspendedBy)
			}
		}
		r.run(t)
	})
}

// TestSuspendFails: whatever fails, the record says what the tasks do.
func TestSuspendFails(t *testing.T) {
	no := errors.New("too many open files")
	for name, c := range map[string]struct {
		fails []string
		err   bool // of the suspend
		still bool // what the record says after it
		calls []string
	}{
		"SIGTSTP": {[]string{"signal SIGTSTP"}, false, true, []string{"signal SIGTSTP", "freeze"}},
		"SIGTSTP and the freezer": {[]string{"signal SIGTSTP", "freeze"}, true, false,
			[]string{"signal SIGTSTP", "freeze", "thaw", "signal SIGCONT"}},
		"the way back as well": {[]string{"signal SIGTSTP", "freeze", "signal SIGCONT"}, true, true,
			[]string{"signal SIGTSTP", "freeze", "thaw", "signal SIGCONT"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			for _, call := range c.fails {
				r.fail[call] = no
			}
			r.during["wait"] = func() {
				atOnce(r)
				if err := r.st.Suspend(0); (err != nil) != c.err {
					t.Errorf("suspend: %v", err)
				}
				if calls := r.after("evict"); !slices.Equal(calls[len(calls)-len(c.calls):], c.calls) {
					t.Errorf("calls: %v, want %v last", calls, c.calls)
				}
				if rec := r.st.Record(); (rec.Suspended != nil) != c.still {
					t.Errorf("suspended since %v", rec.Suspended)
				}
				r.mu.Lock()
				clear(r.fail)
				r.mu.Unlock()
				if err := r.st.Resume(0); (err == nil) != c.still || r.st.Record().Suspended != nil {
					t.Errorf("resume: %v, suspended since %v", err, r.st.Record().Suspended)
				}
			}
			r.run(t)
		})
	}
}

// TestResumeFails: a step whose processes cannot all be woken stays suspended, and can be
// resumed once more.
func TestResumeFails(t *testing.T) {
	r := newRig(t)
	r.during["wait"] = func() {
		atOnce(r)
		if err := r.st.Suspend(0); err != nil {
			t.Error(err)
		}
		r.mu.Lock()
		r.fail["signal SIGCONT"] = errors.New("too many open files")
		r.mu.Unlock()
		err := r.st.Resume(0)
		if err == nil || r.st.Record().Suspended == nil {
			t.Errorf("resume: %v, suspended since %v", err, r.st.Record().Suspended)
		}
		if calls := r.after("wait"); calls[len(calls)-1] != "freeze" {
			t.Errorf("calls: %v", calls)
		}
		r.mu.Lock()
		clear(r.fail)
		r.mu.Unlock()
		if err := r.st.Resume(0); err != nil || r.st.Record().Suspended != nil {
			t.Errorf("resume: %v, suspended since %v", err, r.st.Record().Suspended)
		}
	}
	r.run(t)
}

// A step that is suspended before its tasks are started waits at the gate.
func TestSuspendAtGate(t *testing.T) {
	t.Run("resumed", func(t *testing.T) {
		r := newRig(t)
		r.during["post_fork"] = func() {
			if err := r.st.Suspend(0); err != nil {
				t.Error(err)
			}
			go func() {
				if rec := r.st.Record(); rec.Suspended == nil || slices.Contains(r.after("post_fork"), "wait") {
					t.Errorf("%+v, calls %v", rec, r.after("post_fork"))
				}
				if err := r.st.Resume(0); err != nil {
					t.Error(err)
				}
			}()
		}
		rec := r.run(t)
		wantCalls(t, r, append(slices.Clone(launchCalls), "wait", "pids", "exit", "close mpi", "destroy", "close host")...)
		if rec.State != step.Completed || rec.SuspendedSeconds != 0 {
			t.Errorf("record: %+v", rec)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		r := newRig(t)
		r.during["post_fork"] = func() {
			if err := r.st.Suspend(0); err != nil {
				t.Error(err)
			}
			go r.st.Cancel("enough")
		}
		if rec := r.run(t); rec.State != step.Cancelled || rec.Suspended != nil {
			t.Errorf("record: %+v", rec)
		}
	})
}
