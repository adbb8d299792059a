package node

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"stepd/step"
)

// lentRecord says for whose batch job of several nodes this node has a share, or had one:
// the job may run again, with its number.
type lentRecord struct {
	// Head is the node in whose queue the job is; it and the time tell the job from
	// another one of that number.
	Head      string    `json:"head"`
	Submitted time.Time `json:"submitted"`
	// NextStep is the number of the next step that it has here.
	NextStep uint32 `json:"next_step"`
}

// lentMax is how many of them are kept. Of a job whose record is gone by its next run this
// node knows its own steps alone, which are another job's then.
const lentMax = 4096

// errLent refuses a second share of a batch job. Each ends its job by the number: the end of
// one would be that of the other.
var errLent = errors.New("the share that it had before has not ended yet")

// lend makes a share of the batch job of another node's queue, under the number that it has
// there, and tells whether that job has had one before. The error wraps an errTaken where
// another job has that number here, an errLent where that job's share has not ended.
func (s *store) lend(job *jobRecord, control [][]byte, to lentRecord) (bool, error) {
	again := false // the caller's only where there is no error, as all that is written to below
	undo := func(tx *bbolt.Tx) error {
		return errors.Join(tx.Bucket(bucketControl).Delete(jobKey(job.ID)), tx.Bucket(bucketJobs).Delete(jobKey(job.ID)))
	}
	err := s.updateOr(undo, func(tx *bbolt.Tx) error {
		meta, lent, key := tx.Bucket(bucketMeta), tx.Bucket(bucketLent), jobKey(job.ID)
		var old lentRecord
		err := getJSON(lent, key, &old)
		again = err == nil && old.Head == to.Head && old.Submitted.Equal(to.Submitted)
		last := getNumber(meta, keyLastJob)
		switch {
		case again && tx.Bucket(bucketJobs).Get(key) != nil:
			return errLent
		case again:
			to.NextStep = max(to.NextStep, old.NextStep)
			err = dropStep(tx, step.ID{Job: job.ID, Step: step.ExternStep}) // the next run has its own
		case isKnown(tx, job.ID):
			return errTaken{step.ID{Job: last + 1}}
		default:
			err = pruneLent(tx)
		}
		job.NextStep = to.NextStep
		err = errors.Join(err, putNumber(meta, keyLastJob, max(last, job.ID)), putJSON(lent, key, &to), putJSON(tx.Bucket(bucketJobs), key, job))
		if len(control) > 0 {
			err = errors.Join(err, putJSON(tx.Bucket(bucketControl), key, control))
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("cannot store a share of job %d: %w", job.ID, err)
	}
	return again, nil
}

// isKnown tells whether anything is kept of a job with that number.
func isKnown(tx *bbolt.Tx, job uint32) bool {
	key := jobKey(job)
	for _, b := range [][]byte{bucketJobs, bucketQueue} {
		if tx.Bucket(b).Get(key) != nil {
			return true
		}
	}
	for _, b := range [][]byte{bucketSteps, bucketHeads, bucketHeld} {
		if k, _ := tx.Bucket(b).Cursor().Seek(key); bytes.HasPrefix(k, key) {
			return true
		}
	}
	return false
}

// pruneLent makes room for one more, where there are too many: of jobs that do not run, the
// lowest number goes first.
func pruneLent(tx *bbolt.Tx) error {
	lent, jobs := tx.Bucket(bucketLent), tx.Bucket(bucketJobs)
	surplus := lent.Stats().KeyN + 1 - lentMax
	var gone [][]byte
	c := lent.Cursor()
	for k, _ := c.First(); k != nil && len(gone) < surplus; k, _ = c.Next() {
		if jobs.Get(k) == nil {
			gone = append(gone, bytes.Clone(k))
		}
	}
	for _, k := range gone {
		if err := lent.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

// endLent keeps the number of the next step of a share that ends: its job may run again.
func endLent(tx *bbolt.Tx, job uint32) error {
	var l lentRecord
	var j jobRecord
	key := jobKey(job)
	if getJSON(tx.Bucket(bucketLent), key, &l) != nil || getJSON(tx.Bucket(bucketJobs), key, &j) != nil {
		return nil
	}
	l.NextStep = max(l.NextStep, j.NextStep)
	return putJSON(tx.Bucket(bucketLent), key, &l)
}

// dropStep forgets a step that has ended.
func dropStep(tx *bbolt.Tx, id step.ID) error {
	ended, meta, key := tx.Bucket(bucketEnded), tx.Bucket(bucketMeta), stepKey(id)
	var gone [][]byte
	err := ended.ForEach(func(k, _ []byte) error {
		if bytes.Equal(k[8:], key) {
			gone = append(gone, bytes.Clone(k))
		}
		return nil
	})
	for _, k := range gone {
		err = errors.Join(err, ended.Delete(k))
	}
	count := getNumber(meta, keyEnded)
	return errors.Join(err, tx.Bucket(bucketSteps).Delete(key), putNumber(meta, keyEnded, count-min(count, uint32(len(gone)))))
}

// takeJobs gives out count job numbers from first on, for batch jobs of several nodes of
// this node's or another one's queue. The error wraps an errTaken where one of them was given
// out.
func (s *store) takeJobs(first, count uint32) error {
	err := s.update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		last := getNumber(meta, keyLastJob)
		switch {
		case first <= last:
			return errTaken{step.ID{Job: last + 1}}
		case uint64(first)+uint64(count) > jobsEnd:
			return errors.New("all job numbers are spent")
		}
		return putNumber(meta, keyLastJob, first+count-1)
	})
	if err != nil {
		return fmt.Errorf("cannot take %d job numbers from %d on: %w", count, first, err)
	}
	return nil
}
