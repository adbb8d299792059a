package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"stepd/step"
)

// headRecord is a step of several nodes whose head this node is, while it runs.
type headRecord struct {
	// Rec is the record of the whole step, as it was when it was launched.
	Rec step.Record `json:"rec"`
	// By is who has asked for it.
	By uint32 `json:"by"`
	// Ranks are the ranks of each node, by node id: "0-3,8".
	Ranks []string `json:"ranks"`
	// Watch is nil before the launch.
	Watch *watchKey `json:"watch,omitempty"`
}

func (s *store) putHead(h *headRecord) error {
	doc, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("cannot encode step %s: %w", h.Rec.ID, err)
	}
	key := stepKey(h.Rec.ID)
	var was []byte // nil is that it is new
	err = s.updateOr(func(tx *bbolt.Tx) error {
		heads := tx.Bucket(bucketHeads)
		switch {
		case !bytes.Equal(heads.Get(key), doc): // it has ended since
			return nil
		case was == nil:
			return heads.Delete(key)
		}
		return heads.Put(key, was)
	}, func(tx *bbolt.Tx) error {
		was = bytes.Clone(tx.Bucket(bucketHeads).Get(key))
		return tx.Bucket(bucketHeads).Put(key, doc)
	})
	if err != nil {
		return fmt.Errorf("cannot store step %s: %w", h.Rec.ID, err)
	}
	return nil
}

// heads returns the steps of several nodes that had not ended.
func (s *store) heads() (all []*headRecord, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketHeads).ForEach(func(k, v []byte) error {
			h := new(headRecord)
			if err := json.Unmarshal(v, h); err != nil {
				return fmt.Errorf("step %x: %w", k, err)
			}
			all = append(all, h)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read the steps of several nodes: %w", err)
	}
	return all, nil
}

// finishHead stores the final record of the whole step in the place of that of
// this node's part, as finish does where that is not stored yet, or there is none. It may
// be called again.
func (s *store) finishHead(rec *step.Record, now time.Time) (forgotten []step.ID, err error) {
	forgotten, err = s.end(func(tx *bbolt.Tx) ([]step.ID, error) {
		if err := tx.Bucket(bucketHeads).Delete(stepKey(rec.ID)); err != nil {
			return nil, err
		}
		steps := tx.Bucket(bucketSteps)
		var part step.Record
		err := getJSON(steps, stepKey(rec.ID), &part)
		switch {
		case err == nil && part.State.Final(): // it is counted as an ended step already
			return nil, putJSON(steps, stepKey(rec.ID), rec)
		case err != nil && !errors.Is(err, errUnknown):
			return nil, err
		}
		return s.finishIn(tx, rec, now)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot store the result of step %s: %w", rec.ID, err)
	}
	return forgotten, nil
}
