package state

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"stepd/internal/linux"
	"stepd/node/store"
	"stepd/step"
)

// TakenError refuses a number that a request names: a job or step has it. next is free; the zero
// value is none.
type TakenError struct{ Next step.ID }

func (e TakenError) Error() string {
	if e.Next.Job == 0 {
		return "the number is taken"
	}
	return fmt.Sprintf("the number is taken; %s is free", e.Next)
}

// HadError is the answer where a job has, or had, its one step of this kind.
type HadError struct{ ID step.ID }

func (e HadError) Error() string {
	return fmt.Sprintf("there is, or was, a step %s already: a job has one", e.ID.Name())
}

// NewJobAs numbers a job and, unless rec is nil, its first step: by the numbers that a request
// names, zero for the next ones. Job and record get their ids in here; nothing of it is true
// before it returns. The steps of the job's earlier runs are forgotten, and returned.
// The error wraps a TakenError where anything else is kept of a job with that number. Numbers
// that noded chooses later are higher.
func (s *State) NewJobAs(want step.ID, job *Job, control [][]byte, rec *step.Record) (forgotten []step.ID, err error) {
	err = s.all.Update(func(tx *store.Tx) (err error) {
		if forgotten, err = s.numberJob(tx, want, job); err != nil {
			return err
		}
		key := jobKey(job.ID)
		if rec != nil {
			rec.SetID(step.ID{Job: job.ID, Step: job.firstStep()})
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
	s.ended.remove(forgotten)
	return forgotten, nil
}

func (s *State) numberJob(tx *store.Tx, want step.ID, job *Job) (forgotten []step.ID, err error) {
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
			return nil, TakenError{}
		} else if taken {
			return nil, TakenError{step.ID{Job: last + 1, Step: want.Step}}
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
func (s *State) forgetRuns(tx *store.Tx, job, runs uint32) (forgotten []step.ID, err error) {
	if tx.Has(kindJob, jobKey(job)) {
		return nil, nil
	}
	for _, key := range s.all.Keys(kindStep, ofJob(job)) {
		var rec step.Record
		switch err := tx.Get(kindStep, key, &rec); {
		case errors.Is(err, ErrUnknown): // it was forgotten since
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
func (s *State) isKnown(tx *store.Tx, job uint32) bool {
	of := func(kind string) bool {
		return slices.ContainsFunc(s.all.Keys(kind, ofJob(job)), func(key string) bool { return tx.Has(kind, key) })
	}
	return tx.Has(kindJob, jobKey(job)) || of(kindStep) || of(kindHeld)
}

// NewStepAs numbers a further step of a running job, as NewJobAs numbers the first. The error
// wraps a HadError where the job has had its extern or interactive step.
func (s *State) NewStepAs(want step.ID, job uint32, rec *step.Record) error {
	err := s.all.Update(func(tx *store.Tx) error {
		id, j, err := s.numberStep(tx, want, job)
		if err != nil {
			return err
		}
		rec.SetID(id)
		if id.Step >= step.StepsEnd { // of which there is one, beside the count
			return tx.Put(kindStep, stepKey(id), rec)
		}
		j.NextStep = max(j.NextStep, id.Step+1)
		return errors.Join(tx.Put(kindJob, jobKey(job), j), tx.Put(kindStep, stepKey(rec.ID), rec))
	})
	return wrap(err, "cannot number a step of job %d", job)
}

// numberStep returns the number of a further step of a running job, and the job's record.
func (s *State) numberStep(tx *store.Tx, want step.ID, job uint32) (id step.ID, j *Job, err error) {
	j = new(Job)
	if err := tx.Get(kindJob, jobKey(job), j); err != nil {
		return id, nil, err
	}
	next := step.ID{Job: job, Step: j.NextStep}
	switch {
	case want.Step == step.ExternStep || want.Step == step.InteractiveStep:
		if tx.Has(kindStep, stepKey(want)) {
			return id, nil, HadError{want}
		}
		return want, j, nil
	case want.Job == 0 && next.Step >= step.StepsEnd:
		return id, nil, errors.New("all step numbers are spent")
	case want.Job == 0:
		return next, j, nil
	case !tx.Has(kindStep, stepKey(want)):
		return want, j, nil
	case next.Step >= step.StepsEnd:
		return id, nil, TakenError{}
	}
	return id, nil, TakenError{next}
}

// errPreview ends a transaction of which nothing is to be stored.
var errPreview = errors.New("preview")

// NextID returns the number that a step of the job would get now: by NewStepAs where the job
// runs, else by NewJobAs. Errors are theirs. Nothing is stored.
func (s *State) NextID(want step.ID, job *Job, runs bool) (id step.ID, err error) {
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

// Jobs returns the running jobs, by number.
func (s *State) Jobs() ([]*Job, error) {
	jobs, err := records[Job](s, kindJob, "")
	slices.SortFunc(jobs, func(a, b *Job) int { return cmp.Compare(a.ID, b.ID) })
	return jobs, wrap(err, "cannot read jobs")
}

// EndJob forgets a job that has ended. noded gives its number to no other.
func (s *State) EndJob(job uint32) error {
	key := jobKey(job)
	err := s.all.Record(func(tx *store.Tx) error {
		tx.Delete(kindControl, key)
		tx.Delete(kindJob, key)
		if !tx.Has(kindBatch, key) {
			return nil
		}
		return changeBatch(tx, job, func(b *batchRecord) { b.Job, b.Control = nil, nil })
	})
	return wrap(err, "cannot store the end of job %d", job)
}

// Revoke forgets a step that was numbered and then refused. Its number is spent.
func (s *State) Revoke(id step.ID) error {
	err := s.all.Record(func(tx *store.Tx) error {
		tx.Delete(kindStep, stepKey(id))
		if id.Step == step.BatchStep {
			tx.Delete(kindBatch, jobKey(id.Job))
		}
		return nil
	})
	return wrap(err, "cannot forget step %s, which was refused", id)
}

// JobControl returns the job control environment of a running job.
func (s *State) JobControl(job uint32) (control [][]byte, err error) {
	err = s.getAny(kindControl, jobKey(job), &control)
	return control, wrap(err, "cannot read the job control environment of job %d", job)
}

// SetJobControl replaces it.
func (s *State) SetJobControl(job uint32, control [][]byte) error {
	return wrap(s.all.Update(func(tx *store.Tx) error { return tx.Put(kindControl, jobKey(job), control) }), "cannot store the job control environment of job %d", job)
}

// changeJob changes the record of a running job.
func changeJob(job uint32, change func(*Job)) func(*store.Tx) error {
	return func(tx *store.Tx) error {
		var j Job
		if err := tx.Get(kindJob, jobKey(job), &j); err != nil {
			return err
		}
		change(&j)
		return tx.Put(kindJob, jobKey(job), &j)
	}
}

// SetSuspended says that the job is suspended; nil is that it is not.
func (s *State) SetSuspended(job uint32, rec *Suspension) error {
	return wrap(s.all.Update(changeJob(job, func(j *Job) { j.Suspended = rec })), "cannot store that job %d is suspended, or not", job)
}

// SetNames stores the names that the job's programs have published.
func (s *State) SetNames(job uint32, names []Name) error {
	return wrap(s.all.Update(changeJob(job, func(j *Job) { j.Names = names })), "cannot store the published names of job %d", job)
}

// SetPrologued says that the job's prolog has run. A job that has ended is none.
func (s *State) SetPrologued(job uint32) error {
	err := s.all.Record(changeJob(job, func(j *Job) { j.Prologued = true }))
	if err != nil && !errors.Is(err, ErrUnknown) {
		return fmt.Errorf("cannot store the prolog of job %d: %w", job, err)
	}
	return nil
}

// Crashes returns the plugins that have crashed of late.
func (s *State) Crashes() (map[string]Crash, error) {
	m := make(map[string]Crash)
	err := s.getAny(kindCrashes, keyAll, &m)
	return m, wrap(err, "cannot read the plugins' crashes")
}

// SetCrashes replaces them.
func (s *State) SetCrashes(m map[string]Crash) error {
	return wrap(s.all.Record(func(tx *store.Tx) error { return tx.Put(kindCrashes, keyAll, m) }), "cannot store the plugins' crashes")
}

// Held returns the steps of which processes are left that do not die.
func (s *State) Held() (map[step.ID]*Held, error) {
	list, err := records[Held](s, kindHeld, "")
	m := make(map[step.ID]*Held, len(list))
	for _, h := range list {
		m[h.Rec.ID] = h
	}
	return m, wrap(err, "cannot read the steps that are not killed yet")
}

// PutHeld stores one of them, and DropHeld forgets it.
func (s *State) PutHeld(h *Held) error {
	return wrap(s.all.Record(func(tx *store.Tx) error { return tx.Put(kindHeld, stepKey(h.Rec.ID), h) }), "cannot store what is left of step %s", h.Rec.ID)
}

// DropHeld is documented with PutHeld.
func (s *State) DropHeld(id step.ID) error {
	err := s.all.Record(func(tx *store.Tx) error {
		tx.Delete(kindHeld, stepKey(id))
		return nil
	})
	return wrap(err, "cannot forget what was left of step %s", id)
}

// Restore stores a step that was found running, and its job, whose numbers are spent
// then. Its steps come in any order: gid is the job's group where this is the first.
func (s *State) Restore(rec *step.Record, gid uint32) error {
	err := s.all.Record(func(tx *store.Tx) error {
		job := Job{ID: rec.ID.Job}
		if tx.Get(kindJob, jobKey(job.ID), &job) != nil { // its first step
			job = Job{ID: rec.ID.Job, UID: rec.UID, User: rec.User, GID: gid, CPUs: rec.CPUs, NTasks: rec.NTasks, Origin: step.OriginRun}
		}
		job.CPUs = unionCPUs(job.CPUs, rec.CPUs)
		// Without the step that it was made for, as an allocation is, it ends with its last.
		switch {
		case job.HasClient():
		case rec.ID.Step == step.BatchStep:
			job.Implicit, job.Origin, job.NTasks = true, step.OriginBatch, rec.NTasks
		case rec.ID.Step == 0:
			job.Implicit = true
		}
		if rec.ID.Step < step.StepsEnd {
			job.NextStep = max(job.NextStep, rec.ID.Step+1)
		}
		job.NextStep = max(job.NextStep, s.shown[job.ID])
		return errors.Join(spend(tx, job.ID), tx.Put(kindJob, jobKey(job.ID), &job), tx.Put(kindStep, stepKey(rec.ID), rec))
	})
	return wrap(err, "cannot take step %s back", rec.ID)
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

// Job is a running job in the store.
type Job struct {
	ID   uint32 `json:"id"`
	UID  uint32 `json:"uid"`
	User string `json:"user"`
	CPUs string `json:"cpus"`
	// MemoryMB is the job's memory, 0 where none was given; Gres what it has of the
	// node's generic resources.
	MemoryMB uint64           `json:"memory_mb,omitempty"`
	Gres     []step.GresAlloc `json:"gres,omitempty"`
	// Shared: other jobs may have the job's CPUs too; false also in the records of an older noded.
	Shared bool `json:"cpus_shared,omitempty"`
	// First is the number of the step that the job was made for, NextStep the next one's.
	First    uint32 `json:"first_step,omitempty"`
	NextStep uint32 `json:"next_step"`
	// Implicit jobs were made for their first step, and end with it.
	Implicit bool `json:"implicit"`
	// Origin is what made the job; "" in the records of an older noded is a run.
	Origin step.JobOrigin `json:"origin,omitempty"`
	Name   string         `json:"name,omitempty"`
	NTasks int            `json:"ntasks,omitempty"`
	GID    uint32         `json:"gid,omitempty"`
	// WorkDir, and of a batch job the patterns of its streams, are what prolog
	// and epilog are told.
	WorkDir string `json:"work_dir,omitempty"`
	Stdin   string `json:"stdin,omitempty"`
	Stdout  string `json:"stdout,omitempty"`
	// Prologued: the prolog of an allocation has run.
	Prologued bool `json:"prologued,omitempty"`
	// Suspended: the job's steps stand still, and it takes no further ones.
	Suspended *Suspension `json:"suspended,omitempty"`
	// Holder is the client of an allocation.
	Holder *Process `json:"holder,omitempty"`
	// Deadline is when the job's time is over, nil is never; Warn is sent to its steps
	// before, nil is nothing.
	Deadline   *time.Time    `json:"deadline,omitempty"`
	DeadlineUp *Uptime       `json:"deadline_up,omitempty"`
	Warn       *step.Warning `json:"warn,omitempty"`
	// Array is the place of the job in a job array, Restarts counts its earlier runs: both are
	// the controller's word.
	Array    *step.ArrayTask `json:"array,omitempty"`
	Restarts uint32          `json:"restarts,omitempty"`
	// Stack is the digest of the plugin stack with which the job began, "" where that could not
	// be read.
	Stack string `json:"stack,omitempty"`
	// Started is when the job got its place, LimitS its time limit in seconds; 0 is none. These
	// and the next two are what its plugins ask for.
	Started     time.Time `json:"started,omitzero"`
	LimitS      int       `json:"limit_s,omitempty"`
	CPUsPerTask int       `json:"cpus_per_task,omitempty"`
	SubmitHost  string    `json:"submit_host,omitempty"`
	// Names are published by the job's MPI programs for each other.
	Names []Name `json:"names,omitempty"`
}

// firstStep is the number of the step that the job was made for.
func (j *Job) firstStep() uint32 {
	if j.Origin == step.OriginBatch {
		return step.BatchStep
	}
	return j.First
}

// Leads reports whether the job was made for the step, and ends with it.
func (j *Job) Leads(id step.ID) bool { return j.Implicit && id.Step == j.firstStep() }

// HasClient reports whether the client of an allocation holds the job, beside its steps.
func (j *Job) HasClient() bool { return j.Origin == step.OriginAlloc }

// Suspension says who has suspended a job, and when.
type Suspension struct {
	Since time.Time `json:"since"`
	By    uint32    `json:"by"`
	// CPUsFree: other jobs may have the job's CPUs; false also in the records of an older noded.
	CPUsFree bool `json:"cpus_free,omitempty"`
}

// Process names the client process of an allocation for ever, as a Record does a
// stepd: pids come again.
type Process struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // clock ticks since boot
	BootID string `json:"boot_id"`
}

// Name is one name of a job's (MPI_Publish_name). Both may be any bytes.
type Name struct {
	Name []byte `json:"name"`
	Port []byte `json:"port"`
}

// Drain is the node's drain state; the zero value is not drained.
type Drain struct {
	Drained bool   `json:"drained"`
	Reason  string `json:"reason"`
	// Owner is who ends the drain: OwnerHeld, OwnerFault, or "" for an administrator.
	Owner string `json:"owner,omitempty"`
	// Since is when the node was drained with this reason, By the client that did it; "" is noded.
	Since time.Time `json:"since,omitzero"`
	By    string    `json:"by,omitempty"`
}

// Same reports whether two drain states differ in the time and the client at most.
func (d Drain) Same(o Drain) bool {
	return d.Drained == o.Drained && d.Reason == o.Reason && d.Owner == o.Owner
}

// OwnerHeld: noded has drained the node for processes that do not die, and ends
// the drain with them, unless an administrator has changed it meanwhile.
const OwnerHeld = "unkillable"

// OwnerFault: noded has drained the node because it cannot start steps, and ends the drain when
// it can, as with OwnerHeld.
const OwnerFault = "fault"

// Crash is what the store keeps of a plugin that crashes.
type Crash struct {
	Hook     string `json:"hook"` // the last one
	Times    int    `json:"times"`
	Required bool   `json:"required"`
	File     File   `json:"file"`
}

// File tells one file from another of the same path. The zero value is a
// missing file.
type File struct {
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Mtime int64  `json:"mtime"` // ns
}

// Held is a step, or the prolog and epilog of a job, of which processes
// are left that SIGKILL does not end. noded waits for their end, over restarts.
type Held struct {
	// Rec is what Tracker.EndStep needs to know of the step, and who is left.
	Rec   step.Record `json:"record"`
	Since time.Time   `json:"since"`
	// Waived: an administrator has resumed the node meanwhile.
	Waived bool `json:"waived,omitempty"`
	// Programmed: UnkillableStepProgram was run for it.
	Programmed bool `json:"programmed,omitempty"`
}

// Uptime is a moment by the clock that is never set: how long the host has run since its boot.
type Uptime struct {
	BootID string        `json:"boot_id"`
	Up     time.Duration `json:"up_ns"`
}

// batchRecord is what a power failure leaves of a batch job.
type batchRecord struct {
	// Job is nil when nothing is left to be done for the job, its epilog included.
	Job     *Job        `json:"job,omitempty"`
	Control [][]byte    `json:"control,omitempty"`
	Step    step.Record `json:"step"`
}

// Limit gives the job its end, from now on.
func (j *Job) Limit(d time.Duration, c *Clock, boot string) {
	j.Deadline, j.DeadlineUp = new(c.Now().Add(d)), &Uptime{BootID: boot, Up: c.Up() + d}
}

// GoOn makes a stored Deadline one to be waited for: an older noded's is by the host's
// clock.
func (j *Job) GoOn(c *Clock, boot string) {
	if u := j.DeadlineUp; j.Deadline != nil && u != nil && linux.SameBoot(u.BootID, boot) {
		j.Deadline = new(c.Now().Add(u.Up - c.Up()))
	}
}

// The host's clock may be set while steps run. What noded has to wait for it counts by the
// monotonic clock, and what the next noded is to go on with is stored by that clock too:
// within a boot nothing depends on the host's. After a boot no job is left to be limited.

// Clock is the source of times.
type Clock struct {
	// Now is the host's clock, and up how long the host has run.
	Now func() time.Time
	Up  func() time.Duration
}

// HostClock is the clock of this host.
func HostClock() *Clock { return &Clock{Now: time.Now, Up: linux.Uptime} }
