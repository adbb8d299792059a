package task

import (
	"fmt"
	"sync"
	"syscall"

	"stepd/step"
)

// endKind is what ends a step other than its tasks' own ends.
type endKind int

const (
	byRequest endKind = iota // a user: CANCELLED
	byBadExit                // --kill-on-bad-exit: the tasks' codes count
	byAbort                  // MPI: the abort's code counts
	byMemory                 // its memory limit: OUT_OF_MEMORY
	byTime                   // its time limit: TIMEOUT
	byHost                   // stepd's own SIGTERM, as when the host goes down: NODE_FAIL
	byFailure                // the launch has failed, or the plugins' host has died: FAILED
)

// cause is why a step ends. It is the error of a launch that it has ended.
type cause struct {
	kind   endKind
	reason string // one line, for the record
	// rank is the task that did it, nil where none did.
	rank *int
	// code is the step's exit code, of an abort and of a failure.
	code int
	// drain is why the node takes no more jobs, of a failure that the node is to blame for.
	drain string
	// ends: the processes end without being terminated. The kernel has killed them all, or
	// Run is on its way to the end.
	ends bool
}

// Error is the reason.
func (c *cause) Error() string { return c.reason }

// causes are why a step ends: the first one is the step's. Any goroutine may use them.
type causes struct {
	cancelled chan struct{} // closed when the step's processes are to be terminated

	mu     sync.Mutex
	first  *cause // guarded by mu: nil while the step does not end
	failed *cause // guarded by mu: the first failure behind another cause
	ending bool   // guarded by mu: cancelled is closed
}

func newCauses() *causes { return &causes{cancelled: make(chan struct{})} }

// add notes one more cause, and reports whether it is the first one.
func (a *causes) add(c cause) (first bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch first = a.first == nil; {
	case first:
		a.first = &c
	case c.kind == byFailure && a.failed == nil:
		a.failed = &c
	}
	if !c.ends && !a.ending {
		a.ending = true
		close(a.cancelled)
	}
	return first
}

// get returns the cause of the step's end and a failure that came after another cause,
// nil without one.
func (a *causes) get() (first, failed *cause) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.first, a.failed
}

// endedBy is the cause of the step's end, nil while there is none.
func (a *causes) endedBy() *cause {
	first, _ := a.get()
	return first
}

// terminated reports whether the step's end may have sent sig to its tasks.
func (a *causes) terminated(sig syscall.Signal) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ending && (sig == syscall.SIGTERM || sig == syscall.SIGKILL)
}

// mpiAbort is called by the MPI plugin when a rank asks for the step's end, or
// has died in the middle of it; rank is below 0 where none did. Of a step that ends
// already it changes nothing: its ranks die because they are killed.
func (s *Step) mpiAbort(rank, code int, text string) {
	c := cause{kind: byAbort, code: max(1, code&0xff), reason: text} // an abort is no success
	if rank >= 0 {
		c.rank, c.reason = &rank, fmt.Sprintf("task %d: MPI abort with code %d: %s", rank, code, text)
	}
	s.end(c)
}

// endBadly is --kill-on-bad-exit: a task has failed.
func (s *Step) endBadly(rank int, status step.ExitStatus) {
	if s.tasks.alive == 0 {
		return // nothing is left to end
	}
	reason := fmt.Sprintf("task %d: %s, and --kill-on-bad-exit was given", rank, status.Describe())
	s.end(cause{kind: byBadExit, rank: &rank, reason: reason})
}
