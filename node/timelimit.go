package node

import (
	"errors"
	"time"

	"stepd/srunopt"
	"stepd/step"
)

// errTime ends an allocation whose time is over.
var errTime = errors.New("the job's time limit has come (--time)")

// limitTime lets a step of the job run no longer than the job, and hands it the
// job's warning where it has none of its own.
func (j *job) limitTime(s *step.Spec, now time.Time) {
	if j.Deadline == nil {
		return
	}
	left := max(1, int((j.Deadline.Sub(now)+time.Second-1)/time.Second))
	s.TimeLimitS = srunopt.Earlier(s.TimeLimitS, left)
	if s.Warn == nil {
		s.Warn = j.Warn
	}
}

// timeGrace is what an allocation has beyond its time: its steps, which count
// whole seconds, are to end by their own limit, and to say so.
const timeGrace = time.Second

// timeOver is closed or sent to when the job's time is over: never without a limit.
// The caller calls stop.
func (j *job) timeOver() (over <-chan time.Time, stop func()) {
	if j.Deadline == nil {
		return nil, func() {}
	}
	t := time.NewTimer(time.Until(*j.Deadline) + timeGrace)
	return t.C, func() { t.Stop() }
}
