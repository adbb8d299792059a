package node

import (
	"testing"
	"time"

	"stepd/node/state"
	"stepd/step"
)

func TestLimitTime(t *testing.T) {
	now := time.Unix(1000, 0)
	in := func(d time.Duration) *time.Time { e := now.Add(d); return &e }
	own, jobs := &step.Warning{Signal: 10}, &step.Warning{Signal: 12}
	for name, c := range map[string]struct {
		job  state.Job
		spec step.Request
		want int
		warn *step.Warning
	}{
		"none":            {state.Job{}, step.Request{TimeLimitS: 5}, 5, nil},
		"the job's":       {state.Job{Deadline: in(2500 * time.Millisecond), Warn: jobs}, step.Request{}, 3, jobs},
		"the step's":      {state.Job{Deadline: in(time.Minute), Warn: jobs}, step.Request{TimeLimitS: 5, Warn: own}, 5, own},
		"the job's first": {state.Job{Deadline: in(time.Second)}, step.Request{TimeLimitS: 5}, 1, nil},
		"over":            {state.Job{Deadline: in(-time.Second)}, step.Request{}, 1, nil},
	} {
		s := &step.Spec{Request: c.spec}
		(&job{Job: c.job}).limitTime(s, now)
		if s.TimeLimitS != c.want || s.Warn != c.warn {
			t.Errorf("%s: %d s, %v", name, s.TimeLimitS, s.Warn)
		}
	}
}
