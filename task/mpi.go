package task

import (
	"fmt"
	"os"
	"syscall"

	"stepd/step"
)

// mpiTable tells an MPI plugin how the tasks of this node are: what a debugger is
// to attach to.
func (s *Step) mpiTable() []step.MPITask {
	tasks := s.Record().Tasks
	all := make([]step.MPITask, len(tasks))
	for i := range tasks {
		t := &tasks[i]
		all[i] = step.MPITask{Rank: t.Rank, State: t.State, Status: t.Status}
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

// signalRanks sends a signal to tasks of this node; it may be called from any
// goroutine.
func (s *Step) signalRanks(ranks []int, sig syscall.Signal) error {
	if err := s.maySignal(int(sig)); err != nil {
		return err
	}
	meant := make(map[int]bool, len(ranks))
	for _, r := range ranks {
		meant[r] = true
	}
	s.eachPidfd(func(id, pidfd int) {
		if meant[s.rank(id)] {
			s.sendTask(id, pidfd, int(sig))
		}
	})
	return nil
}
