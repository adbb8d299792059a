package task

import (
	"context"
	"fmt"
	"os"

	"stepd/step"
	"stepd/step/launch"
)

// prefork gives the step its MPI servers. They may still change the environment that
// user_init sees.
func (l *startup) prefork(ctx context.Context) (err error) {
	if l.d.MPI == nil {
		return nil
	}
	l.push("mpi", l.d.MPI.Close)
	l.mpi, err = l.d.MPI.Prefork(ctx, launch.MPIJob{
		Spec:     l.plan.Spec,
		Abort:    l.mpiAbort,
		Log:      func(text string) { l.d.Audience.Log(launch.LogInfo, text) },
		Progress: l.progress.note,
		Tasks:    func() []launch.MPITask { return mpiTable(l.Record().Tasks) },
		Signal:   l.toRanks,
		Cancel:   func(reason string) { _ = l.Cancel(reason) }, // it has no error
		Peers:    l.d.Peers,
		Job:      l.d.Job,
	})
	return err
}

// mpiTable is how the tasks of this node are: what a debugger is to attach to.
func mpiTable(tasks []step.Task) []launch.MPITask {
	all := make([]launch.MPITask, len(tasks))
	for i := range tasks {
		t := &tasks[i]
		all[i] = launch.MPITask{Rank: t.Rank, State: t.State, Status: t.Status}
		if t.PID != nil {
			all[i].PID = *t.PID
		}
		if t.State == step.TaskRunning {
			// What runs now: a script may have exec'd another program since. One that has
			// just ended has none.
			all[i].Program, _ = os.Readlink(fmt.Sprintf("/proc/%d/exe", all[i].PID))
		}
	}
	return all
}

// SpawnedAborted ends the step because one that a task of rank has spawned was
// aborted. It may be called from any goroutine.
func (s *Step) SpawnedAborted(rank, code int, text string) { s.mpiAbort(rank, code, text) }

// awaitSpawned keeps the step until those that it has spawned have ended: they
// write to its streams. Where the step itself has failed, they are ended.
func (t *teardown) awaitSpawned(err error) {
	if t.d.Spawned == nil || t.d.Spawned.Running() == 0 {
		return
	}
	if err != nil {
		t.d.Spawned.Cancel("the step that has spawned it, " + t.plan.Spec.ID.String() + ", has failed")
	}
	t.part("spawned", func() error { t.d.Spawned.Close(); return nil })
}

// reportLaunched reports to the step that has spawned this one when every task has exec'd
// or ended: MPI_Comm_spawn returns then.
func (l *loop) reportLaunched() {
	if l.tasks.launched.Load() && !l.launchReported && l.plan.Spec.Parent != nil {
		l.launchReported = true
		l.d.Audience.State(l.Record())
	}
}
