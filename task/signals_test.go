package task

import (
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
