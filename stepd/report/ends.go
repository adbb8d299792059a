package report

import (
	"slices"
	"sync"
	"time"

	"stepd/step"
)

// endsDelay is how long ends of tasks are collected: the ends of one step come together, and
// reporting each by itself costs every peer a wake-up (srun, too, gets them in groups).
const endsDelay = 50 * time.Millisecond

// Ends collects the ends of tasks and tells them in groups of one status. Any goroutine may
// use it.
type Ends struct {
	tell func(ranks []int, status step.ExitStatus)

	telling sync.Mutex // held while groups are told: all are when the last Tell returns

	mu    sync.Mutex
	list  []ended     // guarded by mu: not told yet, in the order of their first rank
	timer *time.Timer // guarded by mu: tells them
}

// ended are the ranks that share a status.
type ended struct {
	status step.ExitStatus
	ranks  []int
}

// NewEnds calls tell for each group, with its ranks in ascending order.
func NewEnds(tell func(ranks []int, status step.ExitStatus)) *Ends { return &Ends{tell: tell} }

// Add notes the end of a task.
func (e *Ends) Add(rank int, status step.ExitStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.timer == nil {
		e.timer = time.AfterFunc(endsDelay, e.Tell)
	}
	for i := range e.list {
		if e.list[i].status == status {
			e.list[i].ranks = append(e.list[i].ranks, rank)
			return
		}
	}
	e.list = append(e.list, ended{status, []int{rank}})
}

// Tell reports at once the ends that were collected. When it returns, all that was added
// before has been told, by the timer too.
func (e *Ends) Tell() {
	e.telling.Lock()
	defer e.telling.Unlock()
	e.mu.Lock()
	list := e.list
	e.list = nil
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
	e.mu.Unlock()
	for _, end := range list {
		slices.Sort(end.ranks)
		e.tell(end.ranks, end.status)
	}
}
