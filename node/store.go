package node

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"stepd/internal/linux"
	"stepd/step"
)

// store keeps what must survive noded: the numbers given out, running jobs,
// steps (running, and ended ones for a while), and the node's drain state. A
// method that changes something returns when it is on disk. Methods may be
// called from several goroutines.
type store struct {
	db        *bbolt.DB
	keepAge   time.Duration
	keepSteps int
	// up and zero are its clock: setClock.
	up   func() time.Duration
	zero int64
	// gate is what its calls pass: nil waits for ever.
	gate *spoolGate
	// unwritten is why the last commit has failed, nil where it was stored.
	unwritten struct {
		sync.Mutex
		err error
	}
	// slow is what tests have in the place of db.Update; nil is nothing.
	slow atomic.Pointer[func(func(*bbolt.Tx) error) error]
	// forgot hears of the steps that were forgotten when nobody waited for it any more. It
	// passes no gate. nil is nobody.
	forgot func([]step.ID)
	// pageable is why it is not kept in memory, though its file system needs a server; nil
	// where it is, or need not be.
	pageable error
}

// The buckets. Keys are big-endian, so that the order of keys is that of numbers.
var (
	bucketMeta    = []byte("meta")    // keyLastJob, keyEnded, keyDrain, keyCrashes
	bucketJobs    = []byte("jobs")    // job -> jobRecord, JSON; running jobs only
	bucketControl = []byte("control") // job -> its job control environment, JSON; where it has one
	bucketSteps   = []byte("steps")   // job, step -> step.Record, JSON
	bucketEnded   = []byte("ended")   // end time, job, step -> nothing; what may be forgotten, oldest first
	bucketHeld    = []byte("held")    // job, step -> heldRecord, JSON; of which processes are left
	keyLastJob    = []byte("last_job")
	keyEnded      = []byte("ended") // how many entries bucketEnded has
	keyDrain      = []byte("drain")
	keyCrashes    = []byte("crashes") // path of a plugin -> crashRecord, JSON
)

// openStore opens the database, or makes an empty one. The caller holds the spool's lock.
func openStore(path string, keepAge time.Duration, keepSteps int) (*store, error) {
	options := &bbolt.Options{
		OpenFile: func(path string, flags int, mode os.FileMode) (*os.File, error) {
			return linux.OpenBeneath(filepath.Dir(path), filepath.Base(path), flags, uint32(mode.Perm()))
		},
		Timeout: time.Second, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, InitialMmapSize: mapSize,
	}
	options.MmapFlags, options.Mlock = mapping(filepath.Dir(path))
	db, err := bbolt.Open(path, 0o600, options)
	var pageable error
	if err != nil && options.Mlock { // it may not lock memory
		pageable, options.Mlock = err, false
		db, err = bbolt.Open(path, 0o600, options)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open state %q: %w", path, err)
	}
	db.AllocSize = growSize
	if err := os.Chmod(path, 0o600); err != nil {
		db.Close()
		return nil, fmt.Errorf("cannot protect state: %w", err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, b := range [][]byte{bucketMeta, bucketJobs, bucketControl, bucketSteps, bucketEnded, bucketHeld} {
			if _, err := tx.CreateBucketIfNotExists(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("cannot prepare state %q: %w", path, err)
	}
	return &store{db: db, keepAge: keepAge, keepSteps: keepSteps, pageable: pageable}, nil
}

func (s *store) close() error { return s.db.Close() }

// errUnknown is returned for a job or step that the store does not have.
var errUnknown = errors.New("not in the state store")

// errTaken refuses a number that a request names: a job or step has it, and next is free.
type errTaken struct{ next step.ID }

func (e errTaken) Error() string { return fmt.Sprintf("the number is taken; %s is free", e.next) }

// errHad is the answer where a job has, or had, its one step of this kind.
type errHad struct{ id step.ID }

func (e errHad) Error() string {
	return fmt.Sprintf("there is, or was, a step %s already: a job has one", e.id.Name())
}

// newJobAs numbers a job and, unless rec is nil, its first step: by the numbers that a request
// names, zero for the next ones. Job and record get their ids in here; nothing of it is true
// before newJobAs returns. The error wraps an errTaken where anything is kept of a job with
// that number. Numbers that noded chooses later are higher.
func (s *store) newJobAs(want step.ID, job *jobRecord, control [][]byte, rec *step.Record) error {
	undo := func(tx *bbolt.Tx) error {
		err := errors.Join(tx.Bucket(bucketControl).Delete(jobKey(job.ID)), tx.Bucket(bucketJobs).Delete(jobKey(job.ID)))
		if rec != nil {
			err = errors.Join(err, tx.Bucket(bucketSteps).Delete(stepKey(rec.ID)))
		}
		return err
	}
	err := s.updateOr(undo, func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		last := getNumber(meta, keyLastJob)
		if last >= step.JobsEnd || want.Job >= step.JobsEnd {
			return errors.New("all job numbers are spent")
		}
		job.ID, job.NextStep = last+1, 0
		if want.Job != 0 {
			if isKnown(tx, want.Job) {
				return errTaken{step.ID{Job: last + 1, Step: want.Step}}
			}
			job.ID = want.Job
		}
		if rec != nil {
			rec.ID = step.ID{Job: job.ID, Step: job.firstStep()}
			if rec.ID.Step < step.StepsEnd {
				job.NextStep = rec.ID.Step + 1
			}
			if err := putJSON(tx.Bucket(bucketSteps), stepKey(rec.ID), rec); err != nil {
				return err
			}
		}
		if err := putNumber(meta, keyLastJob, max(last, job.ID)); err != nil {
			return err
		}
		if len(control) > 0 {
			if err := putJSON(tx.Bucket(bucketControl), jobKey(job.ID), control); err != nil {
				return err
			}
		}
		return putJSON(tx.Bucket(bucketJobs), jobKey(job.ID), job)
	})
	if err != nil {
		return fmt.Errorf("cannot number a job: %w", err)
	}
	return nil
}

// newStepAs numbers a further step of a running job, as newJobAs numbers the first. The error
// wraps an errHad where the job has had its extern or interactive step.
func (s *store) newStepAs(want step.ID, job uint32, rec *step.Record) error {
	undo := func(tx *bbolt.Tx) error { return tx.Bucket(bucketSteps).Delete(stepKey(rec.ID)) }
	err := s.updateOr(undo, func(tx *bbolt.Tx) error {
		jobs := tx.Bucket(bucketJobs)
		var j jobRecord
		if err := getJSON(jobs, jobKey(job), &j); err != nil {
			return err
		}
		if j.NextStep >= step.StepsEnd {
			return errors.New("all step numbers are spent")
		}
		id := step.ID{Job: job, Step: j.NextStep}
		if want.Step == step.ExternStep || want.Step == step.InteractiveStep { // of which there is one, beside the count
			rec.ID = want
			if tx.Bucket(bucketSteps).Get(stepKey(want)) != nil {
				return errHad{want}
			}
			return putJSON(tx.Bucket(bucketSteps), stepKey(want), rec)
		}
		if want.Job != 0 {
			if tx.Bucket(bucketSteps).Get(stepKey(want)) != nil {
				return errTaken{id}
			}
			id = want
		}
		rec.ID = id
		j.NextStep = max(j.NextStep, id.Step+1)
		if err := putJSON(jobs, jobKey(job), &j); err != nil {
			return err
		}
		return putJSON(tx.Bucket(bucketSteps), stepKey(rec.ID), rec)
	})
	if err != nil {
		return fmt.Errorf("cannot number a step of job %d: %w", job, err)
	}
	return nil
}

// isKnown reports whether anything is kept of a job with that number.
func isKnown(tx *bbolt.Tx, job uint32) bool {
	key := jobKey(job)
	if tx.Bucket(bucketJobs).Get(key) != nil {
		return true
	}
	for _, b := range [][]byte{bucketSteps, bucketHeld} {
		if k, _ := tx.Bucket(b).Cursor().Seek(key); bytes.HasPrefix(k, key) {
			return true
		}
	}
	return false
}

// freeNumber forgets the steps of an ended job, so that the job can run again with its
// number: runs counts the runs before that one. It returns which they were. Nothing is
// forgotten where the job is there, or one of its steps is of such a run.
func (s *store) freeNumber(job, runs uint32) (forgotten []step.ID, err error) {
	recs, err := s.steps(job)
	if err != nil || len(recs) == 0 || slices.ContainsFunc(recs, func(r *step.Record) bool { return r.Restarts >= runs }) {
		return nil, err
	}
	err = s.update(func(tx *bbolt.Tx) error {
		forgotten = nil
		if tx.Bucket(bucketJobs).Get(jobKey(job)) != nil {
			return nil
		}
		ended, meta := tx.Bucket(bucketEnded), tx.Bucket(bucketMeta)
		var keys [][]byte
		err := ended.ForEach(func(k, _ []byte) error {
			if binary.BigEndian.Uint32(k[8:]) == job {
				keys = append(keys, bytes.Clone(k))
			}
			return nil
		})
		for _, k := range keys {
			err = errors.Join(err, ended.Delete(k), tx.Bucket(bucketSteps).Delete(k[8:]))
			forgotten = append(forgotten, step.ID{Job: job, Step: binary.BigEndian.Uint32(k[12:])})
		}
		count := getNumber(meta, keyEnded)
		return errors.Join(err, putNumber(meta, keyEnded, count-min(count, uint32(len(keys)))))
	})
	if err != nil {
		return nil, fmt.Errorf("cannot forget the last run of job %d: %w", job, err)
	}
	return forgotten, nil
}

// put stores the record of a running step.
func (s *store) put(rec *step.Record) error {
	err := s.update(func(tx *bbolt.Tx) error {
		return putJSON(tx.Bucket(bucketSteps), stepKey(rec.ID), rec)
	})
	if err != nil {
		return fmt.Errorf("cannot store step %s: %w", rec.ID, err)
	}
	return nil
}

// finish stores a final record and forgets ended steps that are too old and
// too many. It returns whom it forgot, so that their logs go too.
func (s *store) finish(rec *step.Record, now time.Time) (forgotten []step.ID, err error) {
	forgotten, err = s.end(func(tx *bbolt.Tx) ([]step.ID, error) { return s.finishIn(tx, rec, now) }, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot store the result of step %s: %w", rec.ID, err)
	}
	return forgotten, nil
}

// end stores the end of steps by f, which returns whom it has forgotten. late is as that of
// transact.
func (s *store) end(f func(*bbolt.Tx) ([]step.ID, error), late func()) ([]step.ID, error) {
	var gone []step.ID
	err := s.transact(func(tx *bbolt.Tx) (err error) {
		gone, err = f(tx)
		return err
	}, func() {
		if s.forgot != nil {
			s.forgot(gone)
		}
		if late != nil {
			late()
		}
	})
	if err != nil {
		return nil, err
	}
	return gone, nil
}

// finishLate is finish of a step that finish could not store. It stores nothing where that
// has come true too late.
func (s *store) finishLate(rec *step.Record, now time.Time) (forgotten []step.ID, err error) {
	forgotten, err = s.end(func(tx *bbolt.Tx) ([]step.ID, error) {
		var own step.Record
		err := getJSON(tx.Bucket(bucketSteps), stepKey(rec.ID), &own)
		if err != nil || own.State.Final() {
			return nil, err
		}
		return s.finishIn(tx, rec, now)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot store the result of step %s: %w", rec.ID, err)
	}
	return forgotten, nil
}

// finishIn is finish within a transaction.
func (s *store) finishIn(tx *bbolt.Tx, rec *step.Record, now time.Time) (forgotten []step.ID, err error) {
	if err := putJSON(tx.Bucket(bucketSteps), stepKey(rec.ID), rec); err != nil {
		return nil, err
	}
	if err := tx.Bucket(bucketEnded).Put(endedKey(now, rec.ID), nil); err != nil {
		return nil, err
	}
	meta := tx.Bucket(bucketMeta)
	ended := getNumber(meta, keyEnded) + 1
	if forgotten, err = s.forget(tx, now, int(ended)-s.keepSteps); err != nil {
		return nil, err
	}
	return forgotten, putNumber(meta, keyEnded, ended-uint32(len(forgotten)))
}

// forgetMax bounds what one step's end pays for others.
const forgetMax = 64

// forget removes the oldest of surplus ended steps, as far as they are old.
func (s *store) forget(tx *bbolt.Tx, now time.Time, surplus int) (gone []step.ID, err error) {
	ended := tx.Bucket(bucketEnded)
	limit := uint64(now.Add(-s.keepAge).UnixNano())
	var keys [][]byte
	c := ended.Cursor()
	for k, _ := c.First(); k != nil && len(keys) < min(surplus, forgetMax); k, _ = c.Next() {
		if binary.BigEndian.Uint64(k) > limit {
			break
		}
		keys = append(keys, append([]byte(nil), k...))
	}
	for _, k := range keys {
		if err := ended.Delete(k); err != nil {
			return nil, err
		}
		if err := tx.Bucket(bucketSteps).Delete(k[8:]); err != nil {
			return nil, err
		}
		gone = append(gone, step.ID{Job: binary.BigEndian.Uint32(k[8:]), Step: binary.BigEndian.Uint32(k[12:])})
	}
	return gone, nil
}

// step returns one step, or an error that wraps errUnknown.
func (s *store) step(id step.ID) (*step.Record, error) {
	rec := new(step.Record)
	err := s.view(func(tx *bbolt.Tx) error { return getJSON(tx.Bucket(bucketSteps), stepKey(id), rec) })
	if err != nil {
		return nil, fmt.Errorf("cannot read step %s: %w", id, err)
	}
	return rec, nil
}

// steps returns the steps of a job, or of all jobs where job is 0, by number.
func (s *store) steps(job uint32) ([]*step.Record, error) {
	var recs []*step.Record
	err := s.view(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketSteps).Cursor()
		for k, v := c.Seek(jobKey(job)); k != nil; k, v = c.Next() {
			if job != 0 && binary.BigEndian.Uint32(k) != job {
				break
			}
			rec := new(step.Record)
			if err := json.Unmarshal(v, rec); err != nil {
				return fmt.Errorf("step %x: %w", k, err)
			}
			recs = append(recs, rec)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read steps: %w", err)
	}
	return recs, nil
}

// knows tells whether the number was ever given out by this store: of what is
// found on the node, only such is ours to remove.
func (s *store) knows(job uint32) (known bool) {
	// A failed read leaves known false: then nothing is removed.
	_ = s.view(func(tx *bbolt.Tx) error {
		known = job >= 1 && job <= getNumber(tx.Bucket(bucketMeta), keyLastJob)
		return nil
	})
	return known
}

func (s *store) drain() (d drainRecord, err error) {
	err = s.view(func(tx *bbolt.Tx) error { return getJSON(tx.Bucket(bucketMeta), keyDrain, &d) })
	if errors.Is(err, errUnknown) {
		return drainRecord{}, nil
	}
	if err != nil {
		return d, fmt.Errorf("cannot read the drain state: %w", err)
	}
	return d, nil
}

func (s *store) setDrain(d drainRecord) error {
	err := s.update(func(tx *bbolt.Tx) error { return putJSON(tx.Bucket(bucketMeta), keyDrain, d) })
	if err != nil {
		return fmt.Errorf("cannot store the drain state: %w", err)
	}
	return nil
}
