package task

import (
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"stepd/eventlog"
	"stepd/step"
)

// signals are the signals that users and MPI plugins send. Any goroutine may use them.
type signals struct {
	plan       *Plan
	tracker    Tracker
	messages   *messages
	ledger     *ledger
	host       *hostProcess
	tasks      *taskTable
	suspension *suspension

	mu    sync.Mutex
	sent  uint64 // guarded by mu: a bit for each signal that was sent
	noted int    // guarded by mu: signals that the event log was to have
}

// Signal sends sig to the process of every task (scope "tasks" or ""), to the process of
// the step's first task alone ("leader"), or to every process of the step
// ("cgroup", of which "all" is the older name).
func (s *signals) Signal(sig int, scope string) error {
	if err := s.admit(sig); err != nil {
		return err
	}
	switch scope {
	case step.ScopeCgroup, "all":
		s.host.evict()
		return s.tracker.Signal(syscall.Signal(sig))
	case "", step.ScopeTasks, step.ScopeLeader:
		s.send(sig, func(rank int) bool { return scope != step.ScopeLeader || rank == 0 })
		return nil
	}
	return fmt.Errorf("cannot send signal to scope %q: want leader, tasks or cgroup", scope)
}

// toRanks sends a signal to tasks of this node.
func (s *signals) toRanks(ranks []int, sig syscall.Signal) error {
	if err := s.admit(int(sig)); err != nil {
		return err
	}
	meant := make(map[int]bool, len(ranks))
	for _, r := range ranks {
		meant[r] = true
	}
	s.send(int(sig), func(rank int) bool { return meant[rank] })
	return nil
}

// admit returns why a signal cannot be sent now; else it notes that it is.
func (s *signals) admit(sig int) error {
	if sig < 1 || sig > 64 {
		return fmt.Errorf("cannot send signal %d: there is none of this number", sig)
	}
	if st := s.ledger.copy().State; st != step.Running {
		return fmt.Errorf("cannot send signal %d: the step is %s", sig, st)
	}
	if sig != int(unix.SIGKILL) && s.suspension.stands() {
		return fmt.Errorf("cannot send signal %d: the step is suspended", sig)
	}
	s.mu.Lock()
	s.sent |= 1 << uint(sig&63)
	s.mu.Unlock()
	return nil
}

// send sends sig to the tasks of the ranks that are meant.
func (s *signals) send(sig int, meant func(rank int) bool) {
	s.tasks.each(func(id, pidfd int) {
		if rank := s.plan.Ranks[id]; meant(rank) {
			s.note(rank, sig)
			_ = unix.PidfdSendSignal(pidfd, syscall.Signal(sig), nil, 0) // ESRCH: it has just ended
		}
	})
}

// wasSent reports whether sig was sent to tasks.
func (s *signals) wasSent(sig syscall.Signal) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent&(1<<uint(sig&63)) != 0
}

// signalsNoted is how many lines about signals the event log has of each task, on
// average: a user who signals in a loop does not fill the disk.
const signalsNoted = 64

// note writes a signal into the event log, unless that has too many of them.
func (s *signals) note(rank, sig int) {
	limit := signalsNoted * len(s.plan.Ranks)
	s.mu.Lock()
	s.noted++
	n := s.noted
	s.mu.Unlock()
	e := eventlog.Event{Event: eventlog.EventTaskSignal, Rank: &rank, Signal: &sig}
	switch {
	case n > limit:
		return
	case n == limit:
		e.Text = fmt.Sprintf("%d signals were noted: further ones are not", n)
	}
	s.messages.event(e)
}
