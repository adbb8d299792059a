package node

import (
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
	err := s.update(func(tx *bbolt.Tx) error { return putJSON(tx.Bucket(bucketHeads), stepKey(h.Rec.ID), h) })
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
// this node's part, as finish does. counted says that the part was counted as an
// ended step already.
func (s *store) finishHead(rec *step.Record, counted bool, now time.Time) (forgotten []step.ID, err error) {
	err = s.update(func(tx *bbolt.Tx) error {
		return errors.Join(
			tx.Bucket(bucketHeads).Delete(stepKey(rec.ID)),
			putJSON(tx.Bucket(bucketSteps), stepKey(rec.ID), rec),
		)
	})
	if err == nil && !counted {
		return s.finish(rec, now)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot store the result of step %s: %w", rec.ID, err)
	}
	return nil, nil
}
