package task

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// Ending is closed when the step's end has been asked for, by whomever.
func (s *Step) Ending() <-chan struct{} { return s.cancelled }

// TaskStream is a copy of what the task of a rank of this node has as descriptor
// fd just now, which the caller closes: a step that the task spawns writes there.
// It may be called from any goroutine. It is a number, so that nobody changes the
// blocking mode of a file that others share.
func (s *Step) TaskStream(rank, fd int) (int, error) {
	local := slices.Index(s.plan.Spec.LocalRanks(), rank)
	s.chMu.Lock()
	defer s.chMu.Unlock()
	pidfd, ok := s.pidfds[local]
	if !ok {
		return -1, fmt.Errorf("cannot take descriptor %d of task %d: it has ended", fd, rank)
	}
	// A pidfd that is readable is dead or a zombie: it has no descriptors.
	copied, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot take descriptor %d of task %d: pidfd_getfd: %w", fd, rank, err)
	}
	return copied, nil
}

// SpawnedAborted ends the step because one that a task of rank has spawned was
// aborted. It may be called from any goroutine.
func (s *Step) SpawnedAborted(rank, code int, text string) { s.mpiAbort(rank, code, text) }

// awaitSpawned keeps the step until those that it has spawned have ended: they
// write to its streams. Where it has come to a bad end itself, they are ended.
func (s *Step) awaitSpawned(err error) {
	if s.d.Spawned == nil || s.d.Spawned.Running() == 0 {
		return
	}
	if err != nil {
		s.d.Spawned.Cancel("the step that has spawned it, " + s.plan.Spec.ID.String() + ", has failed")
	}
	s.endStage("spawned", func() error { s.d.Spawned.Close(); return nil })
}

// tellLaunched tells who has spawned this step when every task has exec'd or ended:
// MPI_Comm_spawn returns then.
func (s *Step) tellLaunched() {
	s.mu.Lock()
	launched := s.launched
	s.mu.Unlock()
	if launched && !s.toldLaunched && s.plan.Spec.Parent != nil {
		s.toldLaunched = true
		s.d.Audience.State(s.Record())
	}
}
