package task

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stepd/step"
)

// unkillableDefault is UnkillableStepTimeout's default (slurm.conf), and
// lastStrike the least time for what is killed after the timeout was spent.
const (
	unkillableDefault = 60 * time.Second
	lastStrike        = time.Second
)

// killing is the one budget for the end of all that is killed: processes that
// do not die must not cost UnkillableStepTimeout at each stage of the end. Only
// Run's goroutine uses it.
type killing struct {
	began time.Time // zero: nothing is being killed
	// left are the processes that were given up: noded looks after them.
	left *step.SurvivorsError
}

func (s *Step) unkillableTimeout() time.Duration {
	if t := s.plan.Spec.UnkillableS; t > 0 {
		return time.Duration(t) * time.Second
	}
	return unkillableDefault
}

// killContext bounds a kill. Its result goes to killed.
func (s *Step) killContext() (context.Context, context.CancelFunc) {
	now := time.Now()
	if s.killing.began.IsZero() {
		s.killing.began = now
	}
	limit := s.unkillableTimeout()
	return context.WithTimeoutCause(context.Background(), max(lastStrike, limit-now.Sub(s.killing.began)),
		fmt.Errorf("still there %v after SIGKILL (UnkillableStepTimeout)", limit))
}

// killed notes what came of a kill, and gives processes up that do not die:
// everybody is told, once. The error is then told already.
func (s *Step) killed(err error) error {
	if err == nil {
		s.killing.began = time.Time{}
		return nil
	}
	left, ok := errors.AsType[*step.SurvivorsError](err)
	if !ok || s.killing.left != nil {
		return err
	}
	s.killing.left = left
	text := err.Error()
	s.sayError(text)
	s.d.Audience.Event(step.Event{Time: s.d.Now(), Event: step.EventUnkillable, Text: text})
	c := s.endedBy()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c != nil {
		s.noteReason(c.reason)
	}
	s.rec.Survivors, s.rec.SurvivorsTotal = left.Survivors, left.Total
	if s.rec.Reason != "" {
		text = s.rec.Reason + "; " + text
	}
	s.rec.Reason = text
	return err
}

// given tells whether processes were given up.
func (s *Step) given() bool { return s.killing.left != nil }

// isGivenUp tells whether err says what killed has told.
func isGivenUp(err error) bool {
	_, ok := errors.AsType[*step.SurvivorsError](err)
	return ok
}
