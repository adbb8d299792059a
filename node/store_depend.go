package node

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"stepd/step"
)

// setWaiting stores what has changed of queued jobs that wait. Those that have ended or
// were started meanwhile stay as they are. old are those that hold again where it is
// refused; nil is that it may come true later.
func (s *store) setWaiting(recs, old []queuedRecord) error {
	err := s.updateOr(takeBack(old), func(tx *bbolt.Tx) error {
		queue := tx.Bucket(bucketQueue)
		for i := range recs {
			var old queuedRecord
			err := getJSON(queue, jobKey(recs[i].Job), &old)
			if errors.Is(err, errUnknown) || err == nil && old.Started {
				continue
			}
			if err == nil {
				err = putJSON(queue, jobKey(recs[i].Job), &recs[i])
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot store %d jobs that wait: %w", len(recs), err)
	}
	return nil
}

// takeBack lets jobs be held, or run again, as old says; nil where that is of nobody.
func takeBack(old []queuedRecord) func(tx *bbolt.Tx) error {
	if len(old) == 0 {
		return nil
	}
	return func(tx *bbolt.Tx) error {
		queue := tx.Bucket(bucketQueue)
		for i := range old {
			var now queuedRecord
			err := getJSON(queue, jobKey(old[i].Job), &now)
			if errors.Is(err, errUnknown) || err == nil && now.Started != old[i].Started {
				continue // it has ended, or was started
			}
			if err == nil {
				now.Held, now.HeldWhy, now.Again = old[i].Held, old[i].HeldWhy, old[i].Again
				err = putJSON(queue, jobKey(now.Job), &now)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// eachTask calls see with the records of the batch steps of an array's jobs, as far as
// they are kept, until ctx ends.
func (s *store) eachTask(ctx context.Context, array uint32, see func(rec *step.Record)) error {
	err := s.view(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketSteps).Cursor()
		last := uint64(array) + step.ArrayMax
		k, v := c.Seek(stepKey(step.ID{Job: array, Step: step.BatchStep}))
		for k != nil && ctx.Err() == nil {
			id := step.ID{Job: binary.BigEndian.Uint32(k), Step: binary.BigEndian.Uint32(k[4:])}
			if uint64(id.Job) > last {
				return nil
			}
			if id.Step == step.BatchStep {
				rec := new(step.Record)
				if err := json.Unmarshal(v, rec); err != nil {
					return fmt.Errorf("step %s: %w", id, err)
				}
				if rec.Array == nil || rec.Array.Job != array {
					return nil // they follow each other
				}
				last = uint64(array) + uint64(rec.Array.Count) - 1
				see(rec)
			}
			if id.Step >= step.BatchStep {
				id.Job++
			}
			k, v = c.Seek(stepKey(step.ID{Job: id.Job, Step: step.BatchStep}))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot read array %d: %w", array, err)
	}
	return nil
}

// arrayJobs are the numbers of an array's jobs by task, as far as they are kept.
func (s *store) arrayJobs(ctx context.Context, array uint32) (map[uint32]uint32, error) {
	jobs := make(map[uint32]uint32)
	err := s.eachTask(ctx, array, func(rec *step.Record) { jobs[rec.Array.Task] = rec.ID.Job })
	return jobs, err
}

// arrayEnd is the end of an array of which no job is queued any more, as far as its
// records are kept. latest returns what is known later than a stored record.
func (s *store) arrayEnd(array uint32, latest func(*step.Record) *step.Record) jobEnd {
	e := jobEnd{began: time.Unix(0, 0), over: true, well: true, words: fmt.Sprintf("a task of array %d has not ended well", array)}
	err := s.eachTask(context.Background(), array, func(rec *step.Record) {
		rec = latest(rec)
		one := endedAs(rec)
		if one.began.After(e.began) {
			e.began = one.began
		}
		if !one.well {
			e.well = false
		}
		e.over = e.over && rec.State.Final()
	})
	switch {
	case err != nil:
		return jobEnd{err: err}
	case !e.over: // between two looks
		return jobEnd{}
	}
	return e
}
