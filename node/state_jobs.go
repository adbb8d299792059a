package node

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"stepd/node/store"
	"stepd/step"
)

// errTaken refuses a number that a request names: a job or step has it. next is free; the zero
// value is none.
type errTaken struct{ next step.ID }

func (e errTaken) Error() string {
	if e.next.Job == 0 {
		return "the number is taken"
	}
	return fmt.Sprintf("the number is taken; %s is free", e.next)
}

// errHad is the answer where a job has, or had, its one step of this kind.
type errHad struct{ id step.ID }

func (e errHad) Error() string {
	return fmt.Sprintf("there is, or was, a step %s already: a job has one", e.id.Name())
}

// newJobAs numbers a job and, unless rec is nil, its first step: by the numbers that a request
// names, zero for the next ones. Job and record get their ids in here; nothing of it is true
// before newJobAs returns. The steps of the job's earlier runs are forgotten, and returned.
// The error wraps an errTaken where anything else is kept of a job with that number. Numbers
// that noded chooses later are higher.
func (s *state) newJobAs(want step.ID, job *jobRecord, control [][]byte, rec *step.Record) (forgotten []step.ID, err error) {
	err = s.all.Update(func(tx *store.Tx) (err error) {
		if forgotten, err = s.numberJob(tx, want, job); err != nil {
			return err
		}
		key := jobKey(job.ID)
		if rec != nil {
			rec.ID = step.ID{Job: job.ID, Step: job.firstStep()}
			if rec.ID.Step < step.StepsEnd {
				job.NextStep = rec.ID.Step + 1
			}
			if err := tx.Put(kindStep, stepKey(rec.ID), rec); err != nil {
				return err
			}
			if rec.ID.Step == step.BatchStep {
				if err := tx.Put(kindBatch, key, batchRecord{job, control, *rec}); err != nil {
					return err
				}
			}
		}
		if len(control) > 0 {
			if err := tx.Put(kindControl, key, control); err != nil {
				return err
			}
		}
		return tx.Put(kindJob, key, job)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot number a job: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = slices.DeleteFunc(s.ended, func(e endedStep) bool { return slices.Contains(forgotten, e.id) })
	return forgotten, nil
}

func (s *state) numberJob(tx *store.Tx, want step.ID, job *jobRecord) (forgotten []step.ID, err error) {
	n, err := tx.Last(jobNumbers)
	if err != nil {
		return nil, err
	}
	last := uint32(n)
	spent := last >= step.JobsEnd-1 // a controller may have chosen the highest, and goes on below it
	if spent && want.Job == 0 {
		return nil, errors.New("all job numbers are spent")
	}
	job.ID, job.NextStep = last+1, 0
	if want.Job != 0 {
		if forgotten, err = s.forgetRuns(tx, want.Job, job.Restarts); err != nil {
			return nil, err
		}
		if taken := s.isKnown(tx, want.Job); taken && spent {
			return nil, errTaken{}
		} else if taken {
			return nil, errTaken{step.ID{Job: last + 1, Step: want.Step}}
		}
		job.ID = want.Job
	}
	if job.ID <= last {
		return forgotten, nil
	}
	return forgotten, tx.Spend(jobNumbers, uint64(job.ID))
}

// forgetRuns forgets the steps of an ended job, so that the job can run again with its number:
// runs counts the runs before that one. Nothing is forgotten where the job has not ended, or
// one of its steps is of such a run.
func (s *state) forgetRuns(tx *store.Tx, job, runs uint32) (forgotten []step.ID, err error) {
	if has(tx, kindJob, jobKey(job)) {
		return nil, nil
	}
	for _, key := range s.all.Keys(kindStep, ofJob(job)) {
		var rec step.Record
		switch err := tx.Get(kindStep, key, &rec); {
		case errors.Is(err, errUnknown): // it was forgotten since
		case err != nil:
			return nil, err
		case rec.Restarts >= runs:
			return nil, nil
		case rec.State.Final():
			forgotten = append(forgotten, rec.ID)
		}
	}
	for _, id := range forgotten {
		tx.Delete(kindStep, stepKey(id))
		tx.Delete(kindEnded, stepKey(id))
	}
	forgetBatch(tx, forgotten)
	return forgotten, nil
}

// isKnown reports whether anything is kept of a job with that number.
func (s *state) isKnown(tx *store.Tx, job uint32) bool {
	of := func(kind string) bool {
		return slices.ContainsFunc(s.all.Keys(kind, ofJob(job)), func(key string) bool { return has(tx, kind, key) })
	}
	return has(tx, kindJob, jobKey(job)) || of(kindStep) || of(kindHeld)
}

// newStepAs numbers a further step of a running job, as newJobAs numbers the first. The error
// wraps an errHad where the job has had its extern or interactive step.
func (s *state) newStepAs(want step.ID, job uint32, rec *step.Record) error {
	err := s.all.Update(func(tx *store.Tx) error {
		id, j, err := s.numberStep(tx, want, job)
		if err != nil {
			return err
		}
		rec.ID = id
		if id.Step >= step.StepsEnd { // of which there is one, beside the count
			return tx.Put(kindStep, stepKey(id), rec)
		}
		j.NextStep = max(j.NextStep, id.Step+1)
		return errors.Join(tx.Put(kindJob, jobKey(job), j), tx.Put(kindStep, stepKey(rec.ID), rec))
	})
	if err != nil {
		return fmt.Errorf("cannot number a step of job %d: %w", job, err)
	}
	return nil
}

// numberStep returns the number of a further step of a running job, and the job's record.
func (s *state) numberStep(tx *store.Tx, want step.ID, job uint32) (id step.ID, j *jobRecord, err error) {
	j = new(jobRecord)
	if err := tx.Get(kindJob, jobKey(job), j); err != nil {
		return id, nil, err
	}
	next := step.ID{Job: job, Step: j.NextStep}
	switch {
	case want.Step == step.ExternStep || want.Step == step.InteractiveStep:
		if has(tx, kindStep, stepKey(want)) {
			return id, nil, errHad{want}
		}
		return want, j, nil
	case want.Job == 0 && next.Step >= step.StepsEnd:
		return id, nil, errors.New("all step numbers are spent")
	case want.Job == 0:
		return next, j, nil
	case !has(tx, kindStep, stepKey(want)):
		return want, j, nil
	case next.Step >= step.StepsEnd:
		return id, nil, errTaken{}
	}
	return id, nil, errTaken{next}
}

// errPreview ends a transaction of which nothing is to be stored.
var errPreview = errors.New("preview")

// nextID returns the number that a step of the job would get now: by newStepAs where the job
// runs, else by newJobAs. Errors are theirs. Nothing is stored.
func (s *state) nextID(want step.ID, job *jobRecord, runs bool) (id step.ID, err error) {
	err = s.all.Update(func(tx *store.Tx) (err error) {
		if runs {
			id, _, err = s.numberStep(tx, want, job.ID)
		} else if _, err = s.numberJob(tx, want, job); err == nil {
			id = step.ID{Job: job.ID, Step: job.firstStep()}
		}
		return cmp.Or(err, errPreview)
	})
	if !errors.Is(err, errPreview) {
		return step.ID{}, fmt.Errorf("cannot tell the step's number: %w", err)
	}
	return id, nil
}

// jobs returns the running jobs, by number.
func (s *state) jobs() (jobs []jobRecord, err error) {
	for _, key := range s.all.Keys(kindJob, "") {
		var j jobRecord
		switch err := s.all.Get(kindJob, key, &j); {
		case errors.Is(err, errUnknown): // it has ended since
		case err != nil:
			return nil, fmt.Errorf("cannot read jobs: %w", err)
		default:
			jobs = append(jobs, j)
		}
	}
	slices.SortFunc(jobs, func(a, b jobRecord) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, nil
}

// endJob forgets a job that has ended. noded gives its number to no other.
func (s *state) endJob(job uint32) error {
	key := jobKey(job)
	err := s.all.Record(func(tx *store.Tx) error {
		tx.Delete(kindControl, key)
		tx.Delete(kindJob, key)
		if !has(tx, kindBatch, key) {
			return nil
		}
		return changeBatch(tx, job, func(b *batchRecord) { b.Job, b.Control = nil, nil })
	})
	if err != nil {
		return fmt.Errorf("cannot store the end of job %d: %w", job, err)
	}
	return nil
}

// jobControl returns the job control environment of a running job.
func (s *state) jobControl(job uint32) (control [][]byte, err error) {
	if err := s.all.Get(kindControl, jobKey(job), &control); err != nil && !errors.Is(err, errUnknown) {
		return nil, fmt.Errorf("cannot read the job control environment of job %d: %w", job, err)
	}
	return control, nil
}

// setJobControl replaces it.
func (s *state) setJobControl(job uint32, control [][]byte) error {
	err := s.all.Update(func(tx *store.Tx) error { return tx.Put(kindControl, jobKey(job), control) })
	if err != nil {
		return fmt.Errorf("cannot store the job control environment of job %d: %w", job, err)
	}
	return nil
}

// changeJob changes the record of a running job.
func changeJob(job uint32, change func(*jobRecord)) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		var j jobRecord
		if err := tx.Get(kindJob, jobKey(job), &j); err != nil {
			return err
		}
		change(&j)
		return tx.Put(kindJob, jobKey(job), &j)
	}
}

// setSuspended says that the job is suspended; nil is that it is not.
func (s *state) setSuspended(job uint32, rec *suspendRecord) error {
	if err := s.all.Update(changeJob(job, func(j *jobRecord) { j.Suspended = rec })); err != nil {
		return fmt.Errorf("cannot store that job %d is suspended, or not: %w", job, err)
	}
	return nil
}

// setNames stores the names that the job's programs have published.
func (s *state) setNames(job uint32, names []published) error {
	if err := s.all.Update(changeJob(job, func(j *jobRecord) { j.Names = names })); err != nil {
		return fmt.Errorf("cannot store the published names of job %d: %w", job, err)
	}
	return nil
}

// setPrologued says that the job's prolog has run. A job that has ended is none.
func (s *state) setPrologued(job uint32) error {
	err := s.all.Record(changeJob(job, func(j *jobRecord) { j.Prologued = true }))
	if err != nil && !errors.Is(err, errUnknown) {
		return fmt.Errorf("cannot store the prolog of job %d: %w", job, err)
	}
	return nil
}

// crashes returns the plugins that have crashed of late.
func (s *state) crashes() (map[string]crashRecord, error) {
	m := make(map[string]crashRecord)
	if err := s.all.Get(kindCrashes, keyAll, &m); err != nil && !errors.Is(err, errUnknown) {
		return nil, fmt.Errorf("cannot read the plugins' crashes: %w", err)
	}
	return m, nil
}

func (s *state) setCrashes(m map[string]crashRecord) error {
	err := s.all.Record(func(tx *store.Tx) error { return tx.Put(kindCrashes, keyAll, m) })
	if err != nil {
		return fmt.Errorf("cannot store the plugins' crashes: %w", err)
	}
	return nil
}

// held returns the steps of which processes are left that do not die.
func (s *state) held() (map[step.ID]*heldRecord, error) {
	m := make(map[step.ID]*heldRecord)
	for _, key := range s.all.Keys(kindHeld, "") {
		h := new(heldRecord)
		if err := s.all.Get(kindHeld, key, h); err != nil {
			return nil, fmt.Errorf("cannot read the steps that are not killed yet: %w", err)
		}
		m[h.Rec.ID] = h
	}
	return m, nil
}

func (s *state) putHeld(h *heldRecord) error {
	err := s.all.Record(func(tx *store.Tx) error { return tx.Put(kindHeld, stepKey(h.Rec.ID), h) })
	if err != nil {
		return fmt.Errorf("cannot store what is left of step %s: %w", h.Rec.ID, err)
	}
	return nil
}

func (s *state) dropHeld(id step.ID) error {
	err := s.all.Record(func(tx *store.Tx) error {
		tx.Delete(kindHeld, stepKey(id))
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot forget what was left of step %s: %w", id, err)
	}
	return nil
}

// restore stores a step that was found running, and its job, whose numbers are spent
// then. Its steps come in any order: gid is the job's group where this is the first.
func (s *state) restore(rec *step.Record, gid uint32) error {
	err := s.all.Record(func(tx *store.Tx) error {
		job := jobRecord{ID: rec.ID.Job}
		if tx.Get(kindJob, jobKey(job.ID), &job) != nil { // its first step
			job = jobRecord{ID: rec.ID.Job, UID: rec.UID, User: rec.User, GID: gid, CPUs: rec.CPUs, NTasks: rec.NTasks, Origin: step.OriginRun}
		}
		job.CPUs = unionCPUs(job.CPUs, rec.CPUs)
		// Without the step that it was made for, as an allocation is, it ends with its last.
		switch {
		case job.held():
		case rec.ID.Step == step.BatchStep:
			job.Implicit, job.Origin, job.NTasks = true, step.OriginBatch, rec.NTasks
		case rec.ID.Step == 0:
			job.Implicit = true
		}
		if rec.ID.Step < step.StepsEnd {
			job.NextStep = max(job.NextStep, rec.ID.Step+1)
		}
		return errors.Join(spend(tx, job.ID), tx.Put(kindJob, jobKey(job.ID), &job), tx.Put(kindStep, stepKey(rec.ID), rec))
	})
	if err != nil {
		return fmt.Errorf("cannot take step %s back: %w", rec.ID, err)
	}
	return nil
}

// unionCPUs is what either has; what cannot be read is reported where the job is taken back.
func unionCPUs(a, b string) string {
	x, errX := step.ParseCPUList(a)
	y, errY := step.ParseCPUList(b)
	if errX != nil || errY != nil {
		return a
	}
	all := append(x, y...)
	slices.Sort(all)
	return step.FormatCPUList(slices.Compact(all))
}
