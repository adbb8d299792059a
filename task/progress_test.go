package task

import (
	"os"
	"slices"
	"testing"
	"time"

	"stepd/eventlog"
	"stepd/step"
	"stepd/step/launch"
)

// A step that is ended while ranks wait for another one keeps how far each has
// come, and what the other one did; nothing that is told later changes it.
func TestProgressIsKept(t *testing.T) {
	r := newRig(t)
	r.pid = os.Getpid() // of rank 0, which is behind
	r.during["wait"] = func() {
		r.job.Progress(1, step.MPIProgress{Phase: step.PhaseInitialized, Protocol: "PMI-1", Fences: 1, Waiting: "fence 2"})
		r.job.Progress(7, step.MPIProgress{Phase: step.PhaseInitialized}) // none of ours
		r.st.Cancel("enough")
		r.job.Progress(1, step.MPIProgress{Phase: step.PhaseFinalized})
	}
	r.ends = []launch.TaskEnd{{LocalID: 0, Status: step.SignaledBy(15)}, {LocalID: 1, Status: step.SignaledBy(15)}}
	rec := r.run(t)
	if m := rec.Tasks[1].MPI; m == nil || m.Waiting != "fence 2" || m.Phase != step.PhaseInitialized || rec.Tasks[1].Doing != nil {
		t.Errorf("rank 1: %+v, %v", m, rec.Tasks[1].Doing)
	}
	if d := rec.Tasks[0].Doing; rec.Tasks[0].MPI != nil || d == nil || d.Command == "" || d.State == "" || d.PID != r.pid {
		t.Errorf("rank 0: %v, %+v", rec.Tasks[0].MPI, d)
	}
	var told []string
	for _, e := range r.events {
		if e.Event == eventlog.EventMPI {
			told = append(told, e.Ranks+": "+e.MPI.String())
		}
	}
	if want := []string{"0: has not called init", "1: has called init (PMI-1), has come through 1 fence, waits in fence 2"}; !slices.Equal(told, want) {
		t.Errorf("events %q, want %q", told, want)
	}
}

// The record of a step that ended well says nothing of it.
func TestProgressOfSuccess(t *testing.T) {
	r := newRig(t)
	r.during["wait"] = func() {
		r.job.Progress(0, step.MPIProgress{Phase: step.PhaseFinalized})
		if rec := r.st.Stat(); rec.Tasks[0].MPI == nil || rec.Host != nil && rec.Host.PID != fakeHostPID {
			t.Errorf("running: %+v", rec)
		}
	}
	rec := r.run(t)
	if rec.State != step.Completed || rec.Tasks[0].MPI != nil || slices.ContainsFunc(r.events, func(e eventlog.Event) bool { return e.Event == eventlog.EventMPI }) {
		t.Errorf("record %+v, events %v", rec, r.events)
	}
}

func TestLaggards(t *testing.T) {
	pid, over := 1, step.ExitStatus(0)
	waits := &step.MPIProgress{Phase: step.PhaseInitialized, Fences: 1, Waiting: "fence 2"}
	same := &step.MPIProgress{Phase: step.PhaseInitialized, Fences: 1}
	done := &step.MPIProgress{Phase: step.PhaseFinalized}
	for _, c := range []struct {
		name  string
		tasks []step.Task
		want  []int
	}{
		{"none", nil, nil},
		{"no MPI at all", []step.Task{{PID: &pid}, {PID: &pid}}, nil},
		{"all equal", []step.Task{{PID: &pid, MPI: same}, {PID: &pid, MPI: same}}, nil},
		{"one waits for one as far", []step.Task{{PID: &pid, MPI: waits}, {PID: &pid, MPI: same}}, []int{1}},
		{"one was never heard of", []step.Task{{PID: &pid, MPI: same}, {PID: &pid}}, []int{1}},
		{"ended, finalized and not forked", []step.Task{{PID: &pid, MPI: waits}, {PID: &pid, Status: &over}, {PID: &pid, MPI: done}, {}}, nil},
	} {
		if got := laggards(c.tasks); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

// lookAt reads a process's name whatever is in it, and finds no process that is none.
func TestLookAt(t *testing.T) {
	d := step.Doing{PID: os.Getpid()}
	if !lookAt(&d) || d.Command == "" || (d.State != "R" && d.State != "S") {
		t.Errorf("got %+v", d)
	}
	if none := (step.Doing{PID: 1 << 23}); lookAt(&none) {
		t.Errorf("got %+v", none)
	}
	in := launch.HostPlace{Plugin: 2, Hook: "slurm_spank_task_init", SinceNS: 1}
	inHook(&d, fakeHost{newRig(t)}, in)
	if d.Hook != in.Hook || d.Plugin != "x.so" || d.HookTime < time.Nanosecond {
		t.Errorf("got %+v", d)
	}
}
