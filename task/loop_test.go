package task

import (
	"syscall"
	"testing"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

// TestExecsAreTold: noded hears once which tasks run, and where one failed to exec.
func TestExecsAreTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.spec.NTasks = 3
	r.places[0] = launch.HostPlace{Plugin: -1, AtExec: true, Stage: "exec"}
	r.places[2] = launch.HostPlace{Plugin: -1, AtExec: true, Stage: "exec"}
	r.places[1] = launch.HostPlace{Plugin: -1, AtExec: true, Stage: "exec", Errno: int(syscall.ENOENT)}
	r.during["wait"] = func() {
		r.sink(launch.HostRecord{LocalID: 1, Fail: &launch.LaunchError{Rank: 1, Stage: "exec", Errno: syscall.ENOENT, Object: "/none"}})
		r.st.tasks.ends <- launch.TaskEnd{LocalID: 1, Status: step.ExitedWith(2)}
		select {
		case rec := <-r.stalled:
			for rank, want := range []step.TaskState{step.TaskRunning, step.TaskFailed, step.TaskRunning} {
				if got := rec.Tasks[rank].State; got != want {
					t.Errorf("task %d is %s, want %s", rank, got, want)
				}
			}
			if failed := rec.Tasks[1]; failed.Errno != int(syscall.ENOENT) || failed.Object != "/none" {
				t.Errorf("the failed task is %+v", failed)
			}
		case <-time.After(10 * time.Second):
			t.Error("noded was not told")
		}
		time.Sleep(3 * settleAfter)
	}
	r.ends = []launch.TaskEnd{{LocalID: 0}, {LocalID: 2}}
	r.run(t)
	if n := len(r.stalled); n > 0 {
		t.Errorf("told %d times more", n)
	}
}

// TestShortStepTellsNoExecs: a step that is over at once costs noded no record of its execs.
func TestShortStepTellsNoExecs(t *testing.T) {
	r := newRig(t)
	r.run(t)
	if n := len(r.stalled); n > 0 {
		t.Errorf("noded was told %d times", n)
	}
}
