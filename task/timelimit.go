package task

import (
	"fmt"
	"time"

	"stepd/step"
)

// timeLimit is how long the tasks may run, and when they are warned. Only the loop
// uses it.
type timeLimit struct {
	limit time.Duration // 0 is none
	warn  time.Duration // how long they run before; below 0 is never
	timer *time.Timer
	c     <-chan time.Time
}

// newTimeLimit begins to count: the tasks have just been started.
func newTimeLimit(spec *step.Spec) *timeLimit {
	l := &timeLimit{limit: time.Duration(spec.TimeLimitS) * time.Second, warn: -1}
	if l.limit == 0 {
		return l
	}
	if w := spec.Warn; w != nil && w.Batch == isBatch(spec) {
		l.warn = max(0, l.limit-time.Duration(w.BeforeS)*time.Second)
	}
	l.timer = time.NewTimer(l.next())
	l.c = l.timer.C
	return l
}

// next is how long the tasks run until something is due.
func (l *timeLimit) next() time.Duration {
	if l.warn >= 0 {
		return l.warn
	}
	return l.limit
}

func (l *timeLimit) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// leastWait bounds how often the clock is looked at while a step is suspended,
// which does not count as run.
const leastWait = time.Second

// checkTime is called when something may be due.
func (s *Step) checkTime(l *timeLimit) {
	rec := s.Record()
	ran, _ := rec.Ran(s.d.Now())
	if left := l.next() - ran; left > 0 {
		if rec.Suspended != nil {
			left = max(left, leastWait)
		}
		l.timer.Reset(left)
		return
	}
	if l.warn >= 0 {
		l.warn = -1
		if err := s.Signal(s.plan.Spec.Warn.Signal, step.ScopeTasks); err != nil {
			s.messages.log("--signal: " + err.Error())
		}
		l.timer.Reset(max(0, l.limit-ran))
		return
	}
	l.c = nil
	s.end(cause{kind: byTime, reason: fmt.Sprintf("its time limit of %v has come (--time)", l.limit)})
}
