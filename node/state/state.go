package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/node/store"
	"stepd/step"
)

// State is what must survive noded: the numbers given out, running jobs, steps (running, and
// ended ones for a while), and why the node is drained. Package store has the journals; of
// a batch job and a drain the durable one too. Methods may be called from several goroutines.
type State struct {
	all       *store.Store
	keepAge   time.Duration
	keepSteps int
	// clock and boot are by what ended steps are kept.
	clock *Clock
	boot  string
	shown map[uint32]uint32
	// lost are the shown jobs that the state did not know at its opening.
	lost map[uint32]bool

	mu    sync.Mutex
	ended ended // guarded by mu
	// gone are forgotten batch steps that the durable journal still has: the next write to
	// it takes them along.
	gone []step.ID // guarded by mu
}

// The kinds of records. Keys are jobs ("12") and steps ("12.0"), unless a kind says
// otherwise.
const (
	kindJob     = "job"     // Job, which runs
	kindControl = "control" // the job control environment of a running job that has one
	kindStep    = "step"    // step.Record
	kindEnded   = "ended"   // endedAt of a step
	kindHeld    = "held"    // Held
	kindCrashes = "crashes" // keyAll: path of a plugin -> Crash
	kindDrain   = "drain"   // keyAll: Drain; durable
	kindBatch   = "batch"   // batchRecord of a batch job, as long as its step is kept; durable

	keyAll = "all"
	// jobNumbers is the series of the jobs' numbers.
	jobNumbers = "job"
)

// Config is what a state is opened with. All fields but Shown are required.
type Config struct {
	// Spool and Run are the node's directories, whose locks the caller holds. Boot is
	// linux.BootID's.
	Spool, Run, Boot string
	// KeepAge is how long ended steps are kept, and KeepSteps how many are kept whatever
	// their age, both as far as keepBytes has room.
	KeepAge   time.Duration
	KeepSteps int
	// Shown are the jobs of which the directories have files, with the number behind their
	// highest step. nil is none.
	Shown map[uint32]uint32
	// LogSize is how many bytes the event log of a step has.
	LogSize func(step.ID) int64
	// Deadline bounds an answer of the file system.
	Deadline time.Duration
	Clock    *Clock
	Log      *logrus.Logger
}

// oldStateName is the state, in the spool, of the versions that had a queue.
const oldStateName = "state.db"

// Open opens the state of a node. One of an earlier version is refused.
func Open(cfg Config) (*State, error) {
	old, log := filepath.Join(cfg.Spool, oldStateName), cfg.Log
	if _, err := os.Lstat(old); err == nil {
		return nil, fmt.Errorf("cannot use the state of an earlier version %q: batch jobs may wait in it, and this version has no queue: finish or cancel them with that version, then move the file away: steps that run are found again", old)
	}
	all, err := store.Open(store.Config{
		Spool: cfg.Spool, Run: cfg.Run, Durable: []string{kindDrain, kindBatch}, Boot: cfg.Boot, Deadline: cfg.Deadline,
		Silent: func(err error) {
			if err != nil {
				log.Errorf("%v; steps that run go on, and others are refused", err)
			} else {
				log.Warn("the file system of the state has answered")
			}
		},
	})
	if err != nil {
		return nil, err
	}
	s := &State{all: all, keepAge: cfg.KeepAge, keepSteps: cfg.KeepSteps, clock: cfg.Clock, boot: cfg.Boot, shown: cfg.Shown, ended: ended{most: keepBytes}}
	if err = LogOwed(s.restoreBatch(), log); err == nil {
		err = spendShown(s, cfg.Spool)
	}
	if err == nil {
		err = readEnded(s, cfg.LogSize)
	}
	if err != nil {
		return nil, errors.Join(err, all.Close())
	}
	return s, nil
}

// Close stores what is left to be stored.
func (s *State) Close() error {
	s.mu.Lock()
	gone := s.gone
	s.gone = nil
	s.mu.Unlock()
	err := s.all.Record(func(tx *store.Tx) error {
		forgetBatch(tx, gone)
		return nil
	})
	return errors.Join(err, s.all.Close())
}

// spend makes noded's numbers go on above job.
func spend(tx *store.Tx, job uint32) error {
	last, err := tx.Last(jobNumbers)
	if err != nil || uint64(job) <= last {
		return err
	}
	return tx.Spend(jobNumbers, uint64(job))
}

// restoreBatch takes over what only the durable journal has of batch jobs: the host was
// rebooted, or noded was killed between its writes to the two journals.
func (s *State) restoreBatch() error {
	return s.all.Record(func(tx *store.Tx) error {
		highest := uint32(0)
		for _, key := range s.all.Keys(kindBatch, "") {
			id, err := step.ParseID(key + ".batch")
			if err != nil {
				return err
			}
			highest = max(highest, id.Job)
			// So it is with all of them but for the one that was being written: they are not decoded.
			if tx.Has(kindStep, stepKey(id)) && (tx.Has(kindJob, key) || tx.Has(kindEnded, stepKey(id))) {
				continue
			}
			if err := restoreBatchJob(tx, key); err != nil {
				return err
			}
		}
		return spend(tx, highest)
	})
}

// spendShown makes numbers go on above all jobs of which there are files. Where they are not above
// them already, what the state knew of these jobs is lost.
func spendShown(s *State, spool string) error {
	return s.all.Record(func(tx *store.Tx) error {
		last, err := tx.Last(jobNumbers)
		if err != nil {
			return err
		}
		var lost []string
		highest := uint32(0)
		s.lost = make(map[uint32]bool)
		for job := range s.shown {
			if uint64(job) > last {
				s.lost[job] = true
				lost = append(lost, jobKey(job))
				highest = max(highest, job)
			}
		}
		if len(lost) == 0 {
			return nil
		}
		slices.SortFunc(lost, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		return errors.Join(
			tx.Spend(jobNumbers, uint64(highest)),
			tx.Lose(store.Damage{Journal: filepath.Join(spool, store.DurableName), Records: lost}),
		)
	})
}

func restoreBatchJob(tx *store.Tx, key string) error {
	var b batchRecord
	if err := tx.Get(kindBatch, key, &b); err != nil {
		return err
	}
	id := stepKey(b.Step.ID)
	if !tx.Has(kindStep, id) {
		if err := tx.Put(kindStep, id, &b.Step); err != nil {
			return err
		}
	}
	if b.Step.State.Final() && !tx.Has(kindEnded, id) {
		if err := tx.Put(kindEnded, id, endedAt{UID: &b.Step.UID}); err != nil {
			return err
		}
	}
	if b.Job != nil && !tx.Has(kindJob, key) {
		return errors.Join(tx.Put(kindJob, key, b.Job), tx.Put(kindControl, key, b.Control))
	}
	return nil
}

// ErrUnknown is wrapped by the errors of a job or step that the state does not have.
var ErrUnknown = store.ErrNotFound

// LogOwed returns nil of the error of a Record that the next noded knows of, after telling log.
func LogOwed(err error, log logrus.FieldLogger) error {
	if _, ok := errors.AsType[*store.OwedError](err); ok {
		log.Warnf("%v: it is stored there as soon as it can be", err)
		return nil
	}
	return err
}

// wrap puts what could not be done before an error; nil stays nil.
func wrap(err error, what string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(what+": %w", append(args, err)...)
}

func jobKey(job uint32) string  { return fmt.Sprint(job) }
func stepKey(id step.ID) string { return id.Name() }

// CompareIDs orders steps by number.
func CompareIDs(a, b step.ID) int {
	return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Step, b.Step))
}

// ofJob is what the keys of a job's steps begin with, of all jobs' where job is 0.
func ofJob(job uint32) string {
	if job == 0 {
		return ""
	}
	return jobKey(job) + "."
}

// Put stores the record of a running step.
func (s *State) Put(rec *step.Record) error {
	return wrap(s.all.Record(func(tx *store.Tx) error { return tx.Put(kindStep, stepKey(rec.ID), rec) }), "cannot store step %s", rec.ID)
}

// Finish stores a final record and forgets ended steps that are too many (ended.go). It returns
// which it forgot, so that their logs go too. It is done, whatever the error is.
func (s *State) Finish(rec *step.Record) (forgotten []step.ID, err error) {
	doc, err := json.Marshal(rec)
	if err != nil {
		return nil, wrap(err, "cannot store the result of step %s", rec.ID)
	}
	now := Uptime{s.boot, s.clock.Up()}
	batch := rec.ID.Step == step.BatchStep
	s.mu.Lock()
	s.ended.add(rec.UID, endedStep{rec.ID, now.Up, int64(len(doc)) + endedWeight})
	forgotten = s.ended.forget(now.Up, s.keepAge, s.keepSteps)
	for _, id := range forgotten {
		if id.Step == step.BatchStep {
			s.gone = append(s.gone, id)
		}
	}
	var gone []step.ID
	if batch {
		gone, s.gone = s.gone, nil
	}
	s.mu.Unlock()
	err = s.all.Record(func(tx *store.Tx) error {
		for _, id := range forgotten {
			tx.Delete(kindStep, stepKey(id))
			tx.Delete(kindEnded, stepKey(id))
		}
		forgetBatch(tx, gone)
		return errors.Join(putResult(tx, rec, doc), tx.Put(kindEnded, stepKey(rec.ID), endedAt{now, &rec.UID}))
	})
	return forgotten, wrap(err, "cannot store the result of step %s", rec.ID)
}

// Weigh counts the event log of a step that Finish has stored. The next Finish forgets what is too
// much then.
func (s *State) Weigh(id step.ID, uid uint32, log int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended.weigh(id, uid, log)
}

// Fail makes FAILED, with exit code 1 and a reason, of a step that has ended as COMPLETED with 0,
// and returns its record; nil where it has ended in another way.
func (s *State) Fail(id step.ID, reason string) (*step.Record, error) {
	rec, err := s.Step(id)
	if err != nil || rec.State != step.Completed || rec.ExitCode == nil || *rec.ExitCode != 0 {
		return nil, err
	}
	rec.State, rec.ExitCode, rec.Reason = step.Failed, new(1), reason
	doc, err := json.Marshal(rec)
	if err == nil {
		err = s.all.Record(func(tx *store.Tx) error { return putResult(tx, rec, doc) })
	}
	return rec, wrap(err, "cannot store the result of step %s", id)
}

// putResult stores a final record, and its JSON; of a batch step also where a power failure
// leaves it.
func putResult(tx *store.Tx, rec *step.Record, doc json.RawMessage) error {
	if rec.ID.Step == step.BatchStep {
		if err := changeBatch(tx, rec.ID.Job, func(b *batchRecord) { b.Step = *rec }); err != nil {
			return err
		}
	}
	return tx.Put(kindStep, stepKey(rec.ID), doc)
}

// forgetBatch forgets what a power failure leaves of batch steps that are forgotten. A later
// run of the job may have its number.
func forgetBatch(tx *store.Tx, gone []step.ID) {
	for _, id := range gone {
		if id.Step == step.BatchStep && !tx.Has(kindStep, stepKey(id)) {
			tx.Delete(kindBatch, jobKey(id.Job))
		}
	}
}

// changeBatch changes what a power failure leaves of a batch job.
func changeBatch(tx *store.Tx, job uint32, change func(*batchRecord)) error {
	var b batchRecord
	if err := tx.Get(kindBatch, jobKey(job), &b); err != nil && !errors.Is(err, ErrUnknown) {
		return err
	}
	change(&b)
	return tx.Put(kindBatch, jobKey(job), &b)
}

// Step returns one step, or an error that wraps ErrUnknown.
func (s *State) Step(id step.ID) (*step.Record, error) {
	rec := new(step.Record)
	if err := s.all.Get(kindStep, stepKey(id), rec); err != nil {
		return nil, fmt.Errorf("cannot read step %s: %w", id, err)
	}
	rec.SetID(id) // an older noded has not stored IDName
	return rec, nil
}

// IDs are the steps of a job, or of all jobs where job is 0, by number.
func (s *State) IDs(job uint32) (ids []step.ID) {
	for _, key := range s.all.Keys(kindStep, ofJob(job)) {
		if id, err := step.ParseID(key); err == nil {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, CompareIDs)
	return ids
}

// Steps returns the steps of a job, or of all jobs where job is 0, by number.
func (s *State) Steps(job uint32) ([]*step.Record, error) {
	recs, err := records[step.Record](s, kindStep, ofJob(job))
	for _, rec := range recs {
		rec.SetID(rec.ID) // as in Step
	}
	slices.SortFunc(recs, func(a, b *step.Record) int { return CompareIDs(a.ID, b.ID) })
	return recs, wrap(err, "cannot read steps")
}

// Unended returns the steps that have not ended, by number.
func (s *State) Unended() (recs []*step.Record, err error) {
	for _, key := range s.all.Keys(kindStep, "") {
		if s.all.Size(kindEnded, key) > 0 { // thousands may have, and are not decoded
			continue
		}
		rec := new(step.Record)
		if err := s.all.Get(kindStep, key, rec); err != nil {
			return nil, wrap(err, "cannot read steps")
		}
		rec.SetID(rec.ID) // as in Step
		recs = append(recs, rec)
	}
	slices.SortFunc(recs, func(a, b *step.Record) int { return CompareIDs(a.ID, b.ID) })
	return recs, nil
}

// records returns the records of a kind whose keys begin with prefix.
func records[T any](s *State, kind, prefix string) (all []*T, err error) {
	for _, key := range s.all.Keys(kind, prefix) {
		rec := new(T)
		switch err := s.all.Get(kind, key, rec); {
		case errors.Is(err, ErrUnknown): // it was forgotten since
		case err != nil:
			return nil, err
		default:
			all = append(all, rec)
		}
	}
	return all, nil
}

// getAny reads a record into value, which stays as it is where there is none.
func (s *State) getAny(kind, key string, value any) error {
	if err := s.all.Get(kind, key, value); !errors.Is(err, ErrUnknown) {
		return err
	}
	return nil
}

// Knows reports whether the number was ever given out by this node: of what is found on
// the host, only such is ours to remove. Where the state was lost, an administrator looks first:
// the next noded removes it.
func (s *State) Knows(job uint32) bool {
	last, err := s.all.Last(jobNumbers)
	return err == nil && job >= 1 && uint64(job) <= last && !s.lost[job] // else nothing is removed
}

// Drain returns the drain that is stored; the zero value is none.
func (s *State) Drain() (d Drain, err error) {
	err = s.getAny(kindDrain, keyAll, &d)
	return d, wrap(err, "cannot read the drain state")
}

// SetDrain stores what an administrator asks for, and noteDrain what noded has found.
func (s *State) SetDrain(d Drain) error {
	err := s.all.Update(func(tx *store.Tx) error { return tx.Put(kindDrain, keyAll, d) })
	return wrap(err, "cannot store the drain state")
}

// NoteDrain is documented with SetDrain.
func (s *State) NoteDrain(d Drain) error {
	err := s.all.Record(func(tx *store.Tx) error { return tx.Put(kindDrain, keyAll, d) })
	return wrap(err, "cannot store the drain state")
}

// Damage returns why the node is to be drained for what the state has lost, "" is nothing.
// It is settled when the drain is stored.
func (s *State) Damage() (why string, keys []string, err error) {
	all, err := s.all.Damage()
	if err != nil {
		return "", nil, err
	}
	var parts []string
	for key, d := range all {
		lost := "what it was cannot be read"
		if len(d.Records) > 0 {
			lost = shorten(d.Records)
		}
		switch {
		case d.Kept != "":
			parts = append(parts, fmt.Sprintf("the state %q was damaged, the pieces are kept as %q: %s", d.Journal, d.Kept, lost))
		case len(d.Records) > 0:
			parts = append(parts, fmt.Sprintf("the state %q is gone, or a part of it: there are files of jobs that it does not know: %s", d.Journal, lost))
		default:
			parts = append(parts, fmt.Sprintf("the state %q is gone: steps that had ended are forgotten, except batch jobs", d.Journal))
		}
		keys = append(keys, key)
	}
	slices.Sort(parts)
	return strings.Join(parts, "; "), keys, nil
}

// namedMax is how many of the records that are lost a reason names.
const namedMax = 20

func shorten(names []string) string {
	if n := len(names) - namedMax; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namedMax], ", "), n)
	}
	return strings.Join(names, ", ")
}

// SettleDamage forgets damage for which the node is drained.
func (s *State) SettleDamage(keys []string) error {
	return s.all.Record(func(tx *store.Tx) error {
		for _, key := range keys {
			tx.Delete(store.KindDamage, key)
		}
		return nil
	})
}

// Unwritable returns why nothing can be stored, nil is that it can: store.Check.
func (s *State) Unwritable() error { return s.all.Check() }

// Silence returns why the state is not to be asked for anything, nil is that its file system
// answers: store.Silence.
func (s *State) Silence() error { return s.all.Silence() }
