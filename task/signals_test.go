package task

import (
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// Who signals a step in a loop does not fill the disk with its event log.
func TestSignalsNoted(t *testing.T) {
	r := newRig(t)
	r.spec.NTasks = 2
	r.ends = []launch.TaskEnd{{LocalID: 0, Status: step.ExitedWith(0)}, {LocalID: 1, Status: step.ExitedWith(0)}}
	const asked = 1000
	r.during["wait"] = func() {
		for range asked {
			if err := r.st.Signal(int(syscall.SIGUSR1), step.ScopeLeader); err != nil {
				t.Error(err)
				return
			}
		}
	}
	r.run(t)
	noted, last := 0, ""
	for _, e := range r.events {
		if e.Event == eventlog.EventTaskSignal {
			noted++
			last = e.Text
		}
	}
	if want := 2 * signalsNoted; noted != want || last != "128 signals were noted: further ones are not" {
		t.Errorf("%d signals noted, want %d; the last one says %q", noted, want, last)
	}
}

// Ranks that come no further are reported to noded once, which has it should stepd be
// killed.
func TestStallIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for id := range 2 { // no task execs, which would be told before
		r.places[id] = launch.HostPlace{Plugin: -1, Stage: "task_init"}
	}
	r.during["wait"] = func() {
		for fences := range 3 {
			r.st.progress.note(1, step.MPIProgress{Phase: "initialized", Fences: fences, Waiting: "fence"})
		}
		select {
		case rec := <-r.stalled:
			if m := rec.Tasks[1].MPI; m == nil || m.Fences != 2 || m.Waiting != "fence" || rec.Tasks[0].MPI != nil {
				t.Errorf("told of %+v", m)
			}
		case <-time.After(10 * time.Second):
			t.Error("noded was not told")
		}
		if len(r.stalled) > 0 {
			t.Errorf("told %d times more", len(r.stalled))
		}
	}
	r.run(t)
}

// TestSignalPastHost: a signal to all does not wait for the move of a host that is among them, but
// for SIGKILL where processes are left, or where the host starts a script for each task that ends.
func TestSignalPastHost(t *testing.T) {
	for _, c := range []struct {
		name   string
		sig    syscall.Signal
		before func(*rig)
		during func(*rig)
		moved  bool
		spared []int
	}{
		{name: "another signal", sig: syscall.SIGUSR1, spared: []int{fakeHostPID}},
		{name: "kill", sig: syscall.SIGKILL, spared: []int{fakeHostPID}},
		{
			name: "some are left", sig: syscall.SIGKILL, moved: true, spared: []int{fakeHostPID, 0},
			before: func(r *rig) { r.besides = errors.New("process 7 lives") },
		},
		{
			name: "epilogs", sig: syscall.SIGKILL, moved: true, spared: []int{0},
			before: func(r *rig) { r.spec.TaskEpilog = "/ue" },
		},
		{
			name: "dead host", sig: syscall.SIGKILL, spared: []int{0},
			during: func(r *rig) { r.die(step.SignaledBy(syscall.SIGSEGV)); <-r.st.host.gone },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			r.cgroup = 7
			if c.before != nil {
				c.before(r)
			}
			r.during["wait"] = func() {
				if c.during != nil {
					c.during(r)
				}
				if err := r.st.Signal(int(c.sig), step.ScopeCgroup); err != nil {
					t.Error(err)
				}
				if moved := slices.Contains(r.after("wait"), "evict"); moved != c.moved || !slices.Equal(r.spared, c.spared) {
					t.Errorf("moved %v, want %v; passed over %v, want %v", moved, c.moved, r.spared, c.spared)
				}
			}
			r.run(t)
		})
	}
}
