package task

import (
	"syscall"
	"testing"

	"stepd/step"
)

// Who signals a step in a loop does not fill the disk with its event log.
func TestSignalsNoted(t *testing.T) {
	r := newRig(t)
	r.spec.NTasks = 2
	r.ends = []step.TaskEnd{{LocalID: 0, Status: step.ExitedWith(0)}, {LocalID: 1, Status: step.ExitedWith(0)}}
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
		if e.Event == step.EventTaskSignal {
			noted++
			last = e.Text
		}
	}
	if want := 2 * signalsNoted; noted != want || last != "128 signals were noted: further ones are not" {
		t.Errorf("%d signals noted, want %d; the last one says %q", noted, want, last)
	}
}
