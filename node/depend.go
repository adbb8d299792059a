package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"stepd/step"
)

// What batch jobs wait for (--dependency) is looked at whenever the queue is: at jobs that
// have not ended for good by the queue, at others by the records of their batch steps. What
// has come of it is kept with the job that waits, since those records are forgotten.

// dependency is one thing that a batch job waits for, in the store too.
type dependency struct {
	step.Dependency
	// On is the job that it is about; 0 of a singleton, and where it is all of array Job.
	On uint32 `json:"on,omitempty"`
	// Failed: a task of the array has not ended well. Met and Never are what came of it;
	// Why is the reason of the latter.
	Failed bool   `json:"failed,omitempty"`
	Met    bool   `json:"met,omitempty"`
	Never  bool   `json:"never,omitempty"`
	Why    string `json:"why,omitempty"`
}

// ofArray tells whether it is about all tasks of an array.
func (d *dependency) ofArray() bool { return d.Job != 0 && d.On == 0 }

// jobEnd is how far a job has come, or the last of an array.
type jobEnd struct {
	began time.Time // zero where it has not
	over  bool
	well  bool // it has ended with code 0
	words string
	err   error // why nothing of this is known
}

// ends are the jobs that others wait for, as one pass sees them.
type ends struct {
	n      *Node
	jobs   map[uint32]jobEnd
	arrays map[uint32]jobEnd
	// queued are the arrays of which a job is in the queue; nil until that is asked for, and
	// when another one has been started.
	queued map[uint32]jobEnd
	first  map[nameOf]uint32 // the lowest number of the jobs of a name; nil until it is asked for
}

// nameOf is what a singleton shares with others.
type nameOf struct {
	uid  uint32
	name string
}

func newEnds(n *Node) *ends {
	return &ends{n: n, jobs: make(map[uint32]jobEnd), arrays: make(map[uint32]jobEnd)}
}

// depends is why the job has to wait for others, "" if it need not. One that would wait
// for ever is ended where it asks for that.
func (p *pass) depends(q *queued, rec *queuedRecord) string {
	if len(rec.Depends) == 0 {
		return ""
	}
	list, own := rec.Depends, false // what others may read is not changed
	var waits awaited
	never := ""
	for i := range list {
		d := list[i]
		var err error
		met := d.Met
		switch {
		case d.Met || d.Never:
		case d.Kind == step.DependSingleton:
			met = p.ends.alone(q, rec)
		default:
			err = p.look(&d)
			met = d.Met
		}
		if d.Met != list[i].Met || d.Never != list[i].Never {
			if !own {
				list, own = slices.Clone(list), true
			}
			list[i] = d
		}
		if met && rec.AnyDepend {
			waits, never = awaited{}, ""
			break
		}
		switch {
		case d.Never && never == "":
			never = fmt.Sprintf("DependencyNeverSatisfied: %s: %s", d, d.Why)
		case !met && !d.Never:
			waits.add(&d, err)
		}
	}
	if own { // in any case: records are forgotten
		q.setDepends(list)
	}
	if never == "" || rec.AnyDepend && waits.n > 0 {
		return waits.String()
	}
	if rec.KillInvalid && !q.fallen(never) {
		p.later(p.now.Add(queueRetry))
	}
	return never
}

// awaited says what a job waits for: the first of it by name.
type awaited struct {
	n     int
	shown []string
}

func (a *awaited) add(d *dependency, err error) {
	switch a.n++; {
	case a.n > 3:
	case err != nil:
		a.shown = append(a.shown, fmt.Sprintf("%s (%v)", d, err))
	default:
		a.shown = append(a.shown, d.String())
	}
}

// String is "" where there is nothing.
func (a *awaited) String() string {
	if a.n == 0 {
		return ""
	}
	s := "Dependency: " + strings.Join(a.shown, ", ")
	if more := a.n - len(a.shown); more > 0 {
		s += fmt.Sprintf(" and %d more", more)
	}
	return s
}

// fallen ends a job whose dependency can never be met. It returns false where that could
// not be stored.
func (q *queued) fallen(why string) bool {
	if err := q.n.endWaiting(why, step.Cancelled, q); err != nil {
		q.n.log.WithField("job", q.job).Errorf("%v", err)
		return false
	}
	return true
}

// look finds out what has come of a dependency on jobs. Where that cannot be told now it is
// looked at again.
func (p *pass) look(d *dependency) error {
	var e jobEnd
	if d.ofArray() {
		e = p.ends.array(d)
	} else {
		e = p.ends.job(d.On)
	}
	if e.err != nil {
		p.later(p.now.Add(queueRetry))
		return e.err
	}
	switch d.Kind {
	case step.DependAfter:
		if e.began.IsZero() {
			return nil
		}
		at := e.began.Add(time.Duration(d.DelayMin) * time.Minute)
		if d.Met = !at.After(p.now); !d.Met {
			p.later(at)
		}
	case step.DependAfterAny:
		d.Met = e.over
	default:
		if e.over {
			d.Met = e.well == (d.Kind != step.DependNotOK)
			d.Never = !d.Met
		}
		if d.Never {
			d.Why = e.words
		}
	}
	return nil
}

// job is how far a job has come.
func (s *ends) job(job uint32) jobEnd {
	e, known := s.jobs[job]
	if !known {
		e = s.n.batchEnd(job)
		s.jobs[job] = e
	}
	return e
}

func (n *Node) batchEnd(job uint32) jobEnd {
	if q := n.queue.get(job); q != nil {
		return q.now().progress()
	}
	id := step.ID{Job: job, Step: step.BatchStep}
	if f := n.unstored.get(id); f != nil {
		return endedAs(f.record())
	}
	rec, err := n.store.step(id)
	switch {
	case errors.Is(err, errUnknown): // it is long ago
		return jobEnd{began: time.Unix(0, 0), over: true, words: fmt.Sprintf("nothing is known of job %d any more", job)}
	case err != nil:
		return jobEnd{err: err}
	case !rec.State.Final(): // between two looks
		return jobEnd{}
	}
	return endedAs(rec)
}

// endedAs is the end of a job that has ended for good.
func endedAs(rec *step.Record) jobEnd {
	e := jobEnd{began: rec.Submitted, over: true, well: rec.State == step.Completed, words: fmt.Sprintf("job %d: %s", rec.Job, rec.State)}
	switch {
	case rec.Started != nil:
		e.began = *rec.Started
	case rec.Ended != nil: // it was cancelled before
		e.began = *rec.Ended
	}
	return e
}

// progress is how far a job has come that has not ended for good.
func (r queuedRecord) progress() (e jobEnd) {
	switch {
	case r.Started && r.StartedAt != nil:
		e.began = *r.StartedAt
	case r.Started: // by an older noded
		e.began = r.Submitted
	}
	return e
}

// array is how far all tasks of an array have come.
func (s *ends) array(d *dependency) jobEnd {
	if s.queued == nil {
		s.queued = s.n.queue.arrays()
	}
	if e, waits := s.queued[d.Job]; waits {
		return e
	}
	e, known := s.arrays[d.Job]
	if !known {
		e = s.n.arrayEnd(d.Job)
		s.arrays[d.Job] = e
	}
	if d.Failed && e.over {
		e.well = false
	}
	return e
}

// arrayEnd is the end of an array of which no job is in the queue any more.
func (n *Node) arrayEnd(array uint32) jobEnd {
	return n.store.arrayEnd(array, func(rec *step.Record) *step.Record {
		if f := n.unstored.get(rec.ID); f != nil {
			return f.record()
		}
		return rec
	})
}

// arrays is how far those have come of which a job is in the queue.
func (qs *queue) arrays() map[uint32]jobEnd {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	all := make(map[uint32]jobEnd)
	for _, q := range qs.all {
		if q.rec.Array == nil {
			continue
		}
		e, seen := all[q.rec.Array.Job]
		began := q.rec.progress().began
		if !seen || began.IsZero() || !e.began.IsZero() && began.After(e.began) {
			all[q.rec.Array.Job] = jobEnd{began: began} // zero where one waits
		}
	}
	return all
}

// alone tells whether the user's earlier jobs of this name have ended. The tasks of one
// array do not wait for each other.
func (s *ends) alone(q *queued, rec *queuedRecord) bool {
	if s.first == nil {
		s.first = make(map[nameOf]uint32)
		for _, o := range s.n.queue.list(func(*queued) bool { return true }) { // by number
			of := nameOf{o.now().UID, o.record().Name}
			if _, there := s.first[of]; !there {
				s.first[of] = o.job
			}
		}
	}
	first := s.first[nameOf{rec.UID, q.record().Name}]
	if first == q.job {
		return true
	}
	o := s.n.queue.get(first)
	return o != nil && rec.Array != nil && ofArray(o, rec.Array.Job)
}

// setDepends takes over what was found out, and has it stored after the pass.
func (q *queued) setDepends(list []dependency) {
	q.n.queue.mu.Lock()
	defer q.n.queue.mu.Unlock()
	for i := range list {
		list[i].Failed = list[i].Failed || q.rec.Depends[i].Failed // meanwhile
	}
	q.rec.Depends, q.changed = list, true
}

// tellFailed tells those who wait for an array that a task of it has not ended well, before
// that is out of the queue.
func (qs *queue) tellFailed(array *step.ArrayTask, state step.State) {
	if array == nil || !isFinal(state) || state == step.Completed {
		return
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for _, q := range qs.all {
		for i, d := range q.rec.Depends {
			if d.ofArray() && d.Job == array.Job && !d.Failed {
				list := slices.Clone(q.rec.Depends) // others may read the old one
				list[i].Failed = true
				q.rec.Depends, q.changed = list, true
			}
		}
	}
}

// storeDepends stores what was found out of jobs that wait.
func (qs *queue) storeDepends() error {
	qs.change.Lock()
	defer qs.change.Unlock()
	var recs []queuedRecord
	var of []*queued
	qs.mu.Lock()
	for _, q := range qs.all {
		if q.changed && !q.rec.Started && !q.starting {
			recs, of = append(recs, q.rec), append(of, q)
			q.changed = false // what comes from here on is stored the next time
		}
	}
	qs.mu.Unlock()
	if len(recs) == 0 {
		return nil
	}
	err := of[0].n.store.setWaiting(recs, nil)
	if err != nil {
		qs.mu.Lock()
		defer qs.mu.Unlock()
		for _, q := range of {
			q.changed = true
		}
	}
	return err
}
