package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"stepd/step"
)

// When something comes free at the latest is known from the time limits of the jobs
// that hold it: a limit may be overrun by KillWait, and by the time of a suspend.

// byTime says when, in words that end a sentence: ": free at 12:03 at the latest".
func byTime(t, now time.Time) string {
	t = now.Add(t.Sub(now))                                        // by the clock as it is set now
	t = t.Add(time.Minute - time.Nanosecond).Truncate(time.Minute) // never too early
	layout := "15:04"
	if y, d := t.Local().Year(), t.Local().YearDay(); y != now.Local().Year() || d != now.Local().YearDay() {
		layout = "2006-01-02T15:04"
	}
	return "free at " + t.Local().Format(layout) + " at the latest"
}

// until is when a job gives back what it has, nil where it has no limit.
func (r *registry) until(j *job) *time.Time {
	if j.Deadline == nil || j.Suspended != nil {
		return nil
	}
	t := j.Deadline.Add(r.killWait + timeGrace)
	return &t
}

// stepUntil is when a step gives back its share of a job; nil is not known.
func (r *registry) stepUntil(f *follower) *time.Time {
	end := r.until(f.job)
	rec := f.record()
	if rec.TimeLimitS == 0 || rec.Suspended != nil {
		return end
	}
	began := rec.Submitted
	if rec.Started != nil {
		began = *rec.Started
	}
	t := began.Add(time.Duration(rec.TimeLimitS)*time.Second + time.Duration(rec.SuspendedSeconds*float64(time.Second)) + r.killWait)
	if end == nil || t.Before(*end) {
		return &t
	}
	return end
}

// freeOn says when a request fits that does not fit now, as the node's jobs are.
func (r *registry) freeOn(req *step.Request) string {
	has := r.has.Clone()
	now := time.Now()
	jobs := slices.SortedFunc(maps.Values(r.jobs), func(a, b *job) int {
		return cmp.Or(compareTimes(r.until(a), r.until(b)), cmp.Compare(a.ID, b.ID))
	})
	for _, j := range jobs {
		if j.freed {
			continue
		}
		t := r.until(j)
		if t == nil {
			return fmt.Sprintf("; when is not known: job %d has no time limit", j.ID)
		}
		has.Release(j.share())
		if _, _, err := has.Take(req); err == nil {
			return "; " + byTime(*t, now)
		}
	}
	return ""
}

// freeIn says when so many more CPUs of the job are free, as its steps are.
func (r *registry) freeIn(j *job, lack int) string {
	type end struct {
		at   *time.Time
		cpus int
	}
	var ends []end
	for id, f := range r.steps {
		if id.Job == j.ID && f.share.Alone {
			ends = append(ends, end{r.stepUntil(f), len(f.share.CPUs)})
		}
	}
	slices.SortFunc(ends, func(a, b end) int { return compareTimes(a.at, b.at) })
	for _, e := range ends {
		if e.at == nil {
			break
		}
		if lack -= e.cpus; lack <= 0 {
			return ": " + byTime(*e.at, time.Now())
		}
	}
	return ""
}

// compareTimes puts what is not known last.
func compareTimes(a, b *time.Time) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	}
	return a.Compare(*b)
}
