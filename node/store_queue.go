package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"stepd/step"
)

// queuedRecord is a batch job in the store, from its submission until it has ended for
// good.
type queuedRecord struct {
	Job uint32 `json:"job"`
	// By is the uid that has asked for it, UID that which it belongs to.
	By  uint32 `json:"by"`
	UID uint32 `json:"uid"`
	// Request is the job under which its request is kept: those of an array have one.
	Request   uint32          `json:"request"`
	Submitted time.Time       `json:"submitted"`
	Array     *step.ArrayTask `json:"array,omitempty"`
	AtOnce    int             `json:"at_once,omitempty"`
	Begin     *time.Time      `json:"begin,omitempty"`
	NoRequeue bool            `json:"no_requeue,omitempty"`
	// Restarts counts how often it was put back, NextStep is then the number of its next
	// step.
	Restarts uint32 `json:"restarts,omitempty"`
	NextStep uint32 `json:"next_step,omitempty"`
	// Started jobs are in bucketJobs, too; Again is that they are to be put back at their
	// end.
	Started bool `json:"started,omitempty"`
	Again   bool `json:"again,omitempty"`
	// Cancelled ones that run are never put back.
	Cancelled bool `json:"cancelled,omitempty"`
	// StartedAt is when it was started last, nil where it was not, or by an older noded.
	StartedAt *time.Time `json:"started_at,omitempty"`
	// Held is who holds it, "" is nobody, and HeldWhy why where it is not who says so.
	Held    string `json:"held,omitempty"`
	HeldWhy string `json:"held_why,omitempty"`
	// Depends is what it waits for, any of it with AnyDepend; KillInvalid ends it where
	// that can never come. The list is never changed, but replaced.
	Depends     []dependency `json:"depends,omitempty"`
	AnyDepend   bool         `json:"any_depend,omitempty"`
	KillInvalid bool         `json:"kill_invalid,omitempty"`
	size        int          // of its request, in bytes
}

// batchID is the job's batch step.
func (q *queuedRecord) batchID() step.ID { return step.ID{Job: q.Job, Step: step.BatchStep} }

// submit numbers batch jobs, which follow each other, and stores their one request. recs
// are those of their batch steps.
func (s *store) submit(raw []byte, jobs []*queuedRecord, recs []*step.Record) error {
	undo := func(tx *bbolt.Tx) (err error) {
		for _, q := range jobs {
			err = errors.Join(err, dropQueued(tx, q.Job), tx.Bucket(bucketSteps).Delete(stepKey(q.batchID())))
		}
		return err
	}
	err := s.updateOr(undo, func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		last := getNumber(meta, keyLastJob)
		first := last + 1
		if uint64(first)+uint64(len(jobs)) > jobsEnd {
			return errors.New("all job numbers are spent")
		}
		if err := tx.Bucket(bucketRequests).Put(jobKey(first), raw); err != nil {
			return err
		}
		for i, q := range jobs {
			q.Job, q.Request, q.size = first+uint32(i), first, len(raw)
			if q.Array != nil {
				q.Array.Job = first
			}
			recs[i].ID, recs[i].Array = q.batchID(), q.Array
			if err := putJSON(tx.Bucket(bucketQueue), jobKey(q.Job), q); err != nil {
				return err
			}
			if err := putJSON(tx.Bucket(bucketSteps), stepKey(recs[i].ID), recs[i]); err != nil {
				return err
			}
		}
		return putNumber(meta, keyLastJob, first+uint32(len(jobs))-1)
	})
	if err != nil {
		return fmt.Errorf("cannot store a batch job: %w", err)
	}
	return nil
}

// queue returns the batch jobs that have not ended for good.
func (s *store) queue() (all []*queuedRecord, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketQueue).ForEach(func(k, v []byte) error {
			q := new(queuedRecord)
			if err := json.Unmarshal(v, q); err != nil {
				return fmt.Errorf("job %x: %w", k, err)
			}
			q.size = len(tx.Bucket(bucketRequests).Get(jobKey(q.Request)))
			all = append(all, q)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read the queue: %w", err)
	}
	return all, nil
}

// request returns the request of a batch job.
func (s *store) request(job uint32) (raw []byte, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		if raw = bytes.Clone(tx.Bucket(bucketRequests).Get(jobKey(job))); raw == nil {
			return errUnknown
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read the request of job %d: %w", job, err)
	}
	return raw, nil
}

// startQueued makes a queued job a running one, whose batch step is rec.
func (s *store) startQueued(q *queuedRecord, job *jobRecord, control [][]byte, rec *step.Record) error {
	var waits []byte // its batch step until now
	undo := func(tx *bbolt.Tx) error {
		return errors.Join(
			putJSON(tx.Bucket(bucketQueue), jobKey(q.Job), q),
			tx.Bucket(bucketSteps).Put(stepKey(rec.ID), waits),
			tx.Bucket(bucketControl).Delete(jobKey(q.Job)), tx.Bucket(bucketJobs).Delete(jobKey(q.Job)),
		)
	}
	err := s.updateOr(undo, func(tx *bbolt.Tx) error {
		waits = bytes.Clone(tx.Bucket(bucketSteps).Get(stepKey(q.batchID())))
		job.ID, job.NextStep, rec.ID = q.Job, q.NextStep, q.batchID()
		started := *q
		started.Started = true
		return errors.Join(
			putJSON(tx.Bucket(bucketQueue), jobKey(q.Job), &started),
			putJSON(tx.Bucket(bucketSteps), stepKey(rec.ID), rec),
			putJSON(tx.Bucket(bucketControl), jobKey(job.ID), control),
			putJSON(tx.Bucket(bucketJobs), jobKey(job.ID), job),
		)
	})
	if err != nil {
		return fmt.Errorf("cannot store the start of job %d: %w", q.Job, err)
	}
	return nil
}

// setQueued stores what has changed of a queued job. old is as in setWaiting.
func (s *store) setQueued(q *queuedRecord, old ...queuedRecord) error {
	err := s.updateOr(takeBack(old), func(tx *bbolt.Tx) error { return putJSON(tx.Bucket(bucketQueue), jobKey(q.Job), q) })
	if err != nil {
		return fmt.Errorf("cannot store job %d: %w", q.Job, err)
	}
	return nil
}

// putBack ends a job's run and puts it back into the queue, as q and rec are after that.
func (s *store) putBack(q *queuedRecord, rec *step.Record) error {
	err := s.update(func(tx *bbolt.Tx) error {
		var j jobRecord
		var stored queuedRecord
		if err := getJSON(tx.Bucket(bucketJobs), jobKey(q.Job), &j); err == nil {
			q.NextStep = j.NextStep
		} else if err := getJSON(tx.Bucket(bucketQueue), jobKey(q.Job), &stored); err == nil && stored.Restarts == q.Restarts {
			q.NextStep, q.Begin = stored.NextStep, stored.Begin // it was put back, but nobody has heard of it
		}
		// It is no ended step any more, which could be forgotten. Its extern step has one
		// number, which the next run needs.
		ended, meta := tx.Bucket(bucketEnded), tx.Bucket(bucketMeta)
		id, count := stepKey(rec.ID), getNumber(meta, keyEnded)
		extern := stepKey(step.ID{Job: q.Job, Step: step.ExternStep})
		var gone [][]byte
		err := ended.ForEach(func(k, _ []byte) error {
			if bytes.Equal(k[8:], id) || bytes.Equal(k[8:], extern) {
				gone = append(gone, bytes.Clone(k))
			}
			return nil
		})
		for _, k := range gone {
			err = errors.Join(err, ended.Delete(k))
		}
		return errors.Join(err, tx.Bucket(bucketSteps).Delete(extern),
			putNumber(meta, keyEnded, count-min(count, uint32(len(gone)))),
			tx.Bucket(bucketControl).Delete(jobKey(q.Job)), tx.Bucket(bucketJobs).Delete(jobKey(q.Job)),
			putJSON(tx.Bucket(bucketQueue), jobKey(q.Job), q), putJSON(tx.Bucket(bucketSteps), id, rec),
		)
	})
	if err != nil {
		return fmt.Errorf("cannot put job %d back into the queue: %w", q.Job, err)
	}
	return nil
}

// endQueued ends jobs that were never started, with the final records of their batch
// steps. It returns the steps that are forgotten, as finish does. late is called where that
// is stored when nobody waits for it any more.
func (s *store) endQueued(recs []*step.Record, now time.Time, late func()) (forgotten []step.ID, err error) {
	forgotten, err = s.end(func(tx *bbolt.Tx) (all []step.ID, err error) {
		for _, rec := range recs {
			gone, err := s.finishIn(tx, rec, now)
			if err == nil {
				err = dropQueued(tx, rec.Job)
			}
			if err != nil {
				return nil, err
			}
			all = append(all, gone...)
		}
		return all, nil
	}, late)
	if err != nil {
		return nil, fmt.Errorf("cannot store the end of %d queued jobs: %w", len(recs), err)
	}
	return forgotten, nil
}

// dropQueued forgets a queued job, and its request with the last job of that.
func dropQueued(tx *bbolt.Tx, job uint32) error {
	var q, other queuedRecord
	queue := tx.Bucket(bucketQueue)
	if err := getJSON(queue, jobKey(job), &q); errors.Is(err, errUnknown) {
		return nil // of an older noded, or no batch job
	} else if err != nil {
		return err
	}
	if err := queue.Delete(jobKey(job)); err != nil {
		return err
	}
	// Those of an array follow each other.
	c := queue.Cursor()
	for k, v := c.Seek(jobKey(q.Request)); k != nil; k, v = c.Next() {
		if err := json.Unmarshal(v, &other); err != nil {
			return fmt.Errorf("job %x: %w", k, err)
		}
		if other.Request == q.Request {
			return nil
		}
		if other.Request > q.Request {
			break
		}
	}
	return tx.Bucket(bucketRequests).Delete(jobKey(q.Request))
}

// arrayTask is the number of the job of an array's task, 0 where the array has no such
// task, or it was forgotten.
func (s *store) arrayTask(ctx context.Context, array, task uint32) (job uint32, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketSteps).Cursor()
		// The jobs of an array follow each other in the order of their tasks. Some may have
		// been forgotten.
		last := uint64(array) + uint64(task)
		k, v := c.Seek(stepKey(step.ID{Job: array, Step: step.BatchStep}))
		for k != nil && ctx.Err() == nil {
			id := step.ID{Job: binary.BigEndian.Uint32(k), Step: binary.BigEndian.Uint32(k[4:])}
			if uint64(id.Job) > last {
				return nil
			}
			if id.Step == step.BatchStep {
				var rec struct {
					Array *step.ArrayTask `json:"array"`
				}
				if err := json.Unmarshal(v, &rec); err != nil {
					return fmt.Errorf("step %s: %w", id, err)
				}
				if rec.Array == nil || rec.Array.Job != array || rec.Array.Task > task {
					return nil // beyond the array, or the task
				}
				if rec.Array.Task == task {
					job = id.Job
					return nil
				}
			}
			if id.Step >= step.BatchStep {
				id.Job++
			}
			k, v = c.Seek(stepKey(step.ID{Job: id.Job, Step: step.BatchStep}))
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("cannot look for task %d of job %d: %w", task, array, err)
	}
	return job, nil
}
