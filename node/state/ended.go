package state

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"stepd/node/store"
	"stepd/step"
)

// Ended steps are kept for a while, and their users do not pay for it: they are bounded by
// number, age and bytes, of their records and of their event logs. What is forgotten is the oldest step of the user who has the most
// bytes, so that a user with few steps keeps them beside one who ends thousands.

const (
	// keepBytes bounds the records of ended steps, as they are stored, with their share of the
	// event logs: 25,000 of usual ones.
	keepBytes = 64 << 20
	// logShare is how many bytes of an event log count as one of a record: a log is in the spool
	// alone, a record in memory and in two journals. So the logs have 256 MiB at most.
	logShare = 4
	// endedWeight is what an ended step takes beside its record, in bytes.
	endedWeight = 512
	// forgetMax bounds what one step's end pays for others.
	forgetMax = 64
)

// endedStep is a step that may be forgotten.
type endedStep struct {
	id    step.ID
	up    time.Duration
	bytes int64
}

// endedOf are the ended steps of one user, the oldest first.
type endedOf struct {
	steps []endedStep
	bytes int64
}

// ended are all ended steps.
type ended struct {
	most   int64 // keepBytes, but in tests
	byUser map[uint32]*endedOf
	count  int
	bytes  int64
}

// endedAt is the stored record of a step's end.
type endedAt struct {
	Uptime
	// UID is the step's user; nil in the records of an older noded.
	UID *uint32 `json:"uid,omitempty"`
}

func (e *ended) add(uid uint32, s endedStep) {
	of := e.byUser[uid]
	if of == nil {
		if e.byUser == nil {
			e.byUser = make(map[uint32]*endedOf)
		}
		of = new(endedOf)
		e.byUser[uid] = of
	}
	of.steps = append(of.steps, s)
	of.bytes += s.bytes
	e.count++
	e.bytes += s.bytes
}

// dropOldest takes out the oldest step of a user who has one.
func (e *ended) dropOldest(uid uint32) {
	of := e.byUser[uid]
	bytes := of.steps[0].bytes
	of.steps, of.bytes = of.steps[1:], of.bytes-bytes
	e.count, e.bytes = e.count-1, e.bytes-bytes
	if len(of.steps) == 0 {
		delete(e.byUser, uid)
	}
}

// weigh adds the event log of an ended step, which is one of the newest; of one that is forgotten
// already nothing counts.
func (e *ended) weigh(id step.ID, uid uint32, log int64) {
	of := e.byUser[uid]
	if of == nil {
		return
	}
	for i := len(of.steps) - 1; i >= 0; i-- {
		if of.steps[i].id == id {
			log /= logShare
			of.steps[i].bytes += log
			of.bytes, e.bytes = of.bytes+log, e.bytes+log
			return
		}
	}
}

// remove takes out the steps of these numbers.
func (e *ended) remove(ids []step.ID) {
	if len(ids) == 0 {
		return
	}
	old := *e
	*e = ended{most: old.most}
	for uid, of := range old.byUser {
		for _, s := range of.steps {
			if !slices.Contains(ids, s.id) {
				e.add(uid, s)
			}
		}
	}
}

// heaviest is the user whose steps have the most bytes and whose oldest step may go.
func (e *ended) heaviest(mayGo func(*endedOf) bool) (uid uint32, ok bool) {
	most := int64(-1)
	for id, of := range e.byUser {
		if of.bytes > most && mayGo(of) {
			uid, most, ok = id, of.bytes, true
		}
	}
	return uid, ok
}

// forget takes steps out that are beyond keepBytes, or are old and beyond keep steps. A user's
// last step stays unless it is old: the client that waited for it reads it after its end. So do the
// young steps of a user who has no more than an equal share of the bytes.
func (e *ended) forget(now, age time.Duration, keep int) (gone []step.ID) {
	mayGo := func(of *endedOf) bool {
		old := now-of.steps[0].up >= age
		return old || e.bytes > e.most && len(of.steps) > 1 && of.bytes > e.most/int64(len(e.byUser))
	}
	for len(gone) < forgetMax && (e.bytes > e.most || e.count > keep) {
		uid, ok := e.heaviest(mayGo)
		if !ok {
			break
		}
		gone = append(gone, e.byUser[uid].steps[0].id)
		e.dropOldest(uid)
	}
	return gone
}

// readEnded reads when steps ended. Steps of another boot count as ended now.
func readEnded(s *State, logSize func(step.ID) int64) error {
	type found struct {
		uid uint32
		endedStep
	}
	var all []found
	err := s.all.Record(func(tx *store.Tx) error {
		for _, key := range s.all.Keys(kindEnded, "") {
			id, err := step.ParseID(key)
			if err != nil {
				return fmt.Errorf("cannot read which steps have ended: %w", err)
			}
			var at endedAt
			if err := tx.Get(kindEnded, key, &at); err != nil {
				return fmt.Errorf("cannot read when steps have ended: %w", err)
			}
			if at.BootID != s.boot || at.UID == nil {
				if at, err = endedNow(s, tx, id, at); err != nil {
					return err
				}
				if err := tx.Put(kindEnded, key, at); err != nil {
					return err
				}
			}
			all = append(all, found{*at.UID, endedStep{id, at.Up, int64(s.all.Size(kindStep, key)) + endedWeight + logSize(id)/logShare}})
		}
		return nil
	})
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(cmp.Compare(a.up, b.up), CompareIDs(a.id, b.id))
	})
	for _, f := range all {
		s.ended.add(f.uid, f.endedStep)
	}
	return err
}

// endedNow completes the record of an end of another boot, or of an older noded.
func endedNow(s *State, tx *store.Tx, id step.ID, at endedAt) (endedAt, error) {
	if at.BootID != s.boot {
		at.Uptime = Uptime{s.boot, s.clock.Up()}
	}
	if at.UID == nil {
		var rec step.Record
		if err := tx.Get(kindStep, stepKey(id), &rec); err != nil && !errors.Is(err, ErrUnknown) {
			return at, fmt.Errorf("cannot read whose step has ended: %w", err)
		}
		at.UID = &rec.UID
	}
	return at, nil
}
