package task

import (
	"fmt"
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

// end is the one way to end a step: under one lock the first cause becomes the step's, and
// stays. It reports whether c is that one. It does not wait, and may be called from any
// goroutine.
func (s *Step) end(c cause) (first bool) {
	s.settleProgress()
	s.ctlMu.Lock()
	switch first = s.first == nil; {
	case first:
		s.first = &c
	case c.kind == byFailure && s.failed == nil:
		s.failed = &c
	}
	if !c.ends && !s.ending {
		s.ending = true
		close(s.cancelled)
	}
	s.ctlMu.Unlock()
	return first
}

// failedLater is a failure that was not the first cause, nil without one.
func (s *Step) failedLater() *cause {
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	return s.failed
}

// endedBy is the cause of the step's end, nil while there is none.
func (s *Step) endedBy() *cause {
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	return s.first
}

// Cancel ends the step: SIGTERM to all of its processes, after KillWait
// SIGKILL. Before the gate is open nothing is started at all. It does not wait.
func (s *Step) Cancel(reason string) error {
	s.end(cause{kind: byRequest, reason: reason})
	return nil
}

// hostDown ends the step because stepd was told to end.
func (s *Step) hostDown(reason string) { s.end(cause{kind: byHost, reason: reason}) }

// mpiAbort is called by the MPI plugin when a rank asks for the step's end, or
// has died in the middle of it; rank is below 0 where none did. Of a step that ends
// already it changes nothing: its ranks die because they are killed.
func (s *Step) mpiAbort(rank, code int, text string) {
	c := cause{kind: byAbort, code: abortCode(code), reason: text}
	if rank >= 0 {
		c.rank, c.reason = &rank, fmt.Sprintf("task %d: MPI abort with code %d: %s", rank, code, text)
	}
	s.end(c)
}

// abortCode is the exit code that an abort's code makes: one that is no success.
func abortCode(code int) int { return max(1, code&0xff) }

// endBadly is --kill-on-bad-exit: a task has failed.
func (s *Step) endBadly(rank int, status step.ExitStatus) {
	if s.alive == 0 {
		return // nothing is left to end
	}
	reason := fmt.Sprintf("task %d: %s, and --kill-on-bad-exit was given", rank, status.Describe())
	s.end(cause{kind: byBadExit, rank: &rank, reason: reason})
}

// killedByUs reports whether a task that ended by sig was sent it: by the step's
// end, or by a user. A plugin is not to blame for that.
func (s *Step) killedByUs(sig syscall.Signal) bool {
	s.ctlMu.Lock()
	defer s.ctlMu.Unlock()
	sent := s.sent&(1<<uint(sig&63)) != 0
	return sent || (s.ending && (sig == syscall.SIGTERM || sig == syscall.SIGKILL))
}
