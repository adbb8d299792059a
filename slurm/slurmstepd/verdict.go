package slurmstepd

import (
	"sync"
	"syscall"

	"stepd/step"
)

// verdict is the status of the step that is reported to slurmctld. Tasks that a user's command has ended do
// not count: their job was cancelled, and has not failed. Any goroutine may use it.
type verdict struct {
	mu     sync.Mutex
	killed map[int]bool // ranks
}

// kill notes that a command ends the tasks that still run.
func (v *verdict) kill(rec *step.Record) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.killed == nil {
		v.killed = make(map[int]bool)
	}
	for i := range rec.Tasks {
		if t := &rec.Tasks[i]; t.Status == nil {
			v.killed[t.Rank] = true
		}
	}
}

// oomStatus stands for the status of each task that ends once the kernel has killed a process
// of the step for want of memory: srun and sacct say so, whatever the task made of it.
const oomStatus step.ExitStatus = 253

func outOfMemory(rec *step.Record) bool { return rec.State == step.OutOfMemory || len(rec.OOM) > 0 }

// status is the step's, as wait(2) would tell it: the first task that a signal has ended
// wins, else the highest; where a command has ended all of them, the first task's.
func (v *verdict) status(rec *step.Record) step.ExitStatus {
	switch {
	case rec.ID.Step == step.ExternStep:
		return 0
	case outOfMemory(rec):
		return oomStatus
	case rec.Aborted && rec.ExitCode != nil:
		return step.ExitedWith(uint8(*rec.ExitCode))
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var worst step.ExitStatus
	counted, signalled := false, false
	for i := range rec.Tasks {
		t := &rec.Tasks[i]
		if t.Status == nil || v.killed[t.Rank] {
			continue
		}
		counted = true
		if _, ok := t.Status.Signaled(); ok && !signalled {
			signalled, worst = true, *t.Status
		} else if !signalled && *t.Status > worst {
			worst = *t.Status
		}
	}
	switch {
	case counted:
	case len(rec.Tasks) > 0 && rec.Tasks[0].Status != nil:
		return *rec.Tasks[0].Status
	case rec.Signal != nil:
		return step.SignaledBy(syscall.Signal(*rec.Signal))
	case rec.ExitCode != nil:
		return step.ExitedWith(uint8(*rec.ExitCode))
	}
	return worst
}
