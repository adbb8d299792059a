package node

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/bbolt"

	"stepd/step"
)

// lateStore is a store of whose disk nobody hears while it hangs: what is committed is
// there, and its caller has gone. It keeps one ended step.
type lateStore struct {
	*store
	t       *testing.T
	hanging atomic.Bool
	answer  chan struct{}
}

func newLateStore(t *testing.T) *lateStore {
	t.Helper()
	s, err := openStore(filepath.Join(t.TempDir(), "state.db"), 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	late := &lateStore{store: s, t: t, answer: make(chan struct{})}
	s.gate = &spoolGate{dir: "/spool", log: log}
	slow := func(f func(*bbolt.Tx) error) error {
		err := s.db.Update(f)
		if late.hanging.Load() {
			<-late.answer
		}
		return err
	}
	s.slow.Store(&slow)
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	return late
}

// whileHanging calls f, which is to be refused since the spool does not answer, lets it
// answer, and waits until it does.
func (s *lateStore) whileHanging(f func() error) {
	s.t.Helper()
	s.gate.setPatience(100 * time.Millisecond)
	s.hanging.Store(true)
	if err := f(); !errors.As(err, new(errSpool)) {
		s.t.Errorf("while it hangs: %v", err)
	}
	if err := s.update(func(*bbolt.Tx) error { return nil }); !errors.As(err, new(errSpool)) {
		s.t.Errorf("while it does not answer: %v", err)
	}
	s.gate.setPatience(spoolPatience)
	s.hanging.Store(false)
	close(s.answer)
	for s.gate.dead() != nil {
		time.Sleep(time.Millisecond)
	}
	s.answer = make(chan struct{})
}

// all is what the store has.
func (s *lateStore) all() []byte {
	s.t.Helper()
	var out []byte
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				out = append(out, slices.Concat(name, []byte{' '}, k, []byte{' '}, v, []byte{'\n'})...)
				return nil
			})
		})
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// ended counts the ended steps that are kept, by their keys and as they were counted.
func (s *lateStore) ended() (keys int, counted uint32) {
	s.t.Helper()
	err := s.db.View(func(tx *bbolt.Tx) error {
		counted = getNumber(tx.Bucket(bucketMeta), keyEnded)
		return tx.Bucket(bucketEnded).ForEach(func([]byte, []byte) error {
			keys++
			return nil
		})
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return keys, counted
}

// TestStoredTooLate: what was refused since the spool did not answer is not there when it
// has answered after all.
func TestStoredTooLate(t *testing.T) {
	s := newLateStore(t)
	job, rec := &jobRecord{UID: 5}, &step.Record{State: step.Running}
	if err := s.newJobAs(step.ID{}, job, nil, rec); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		do   func() error
		goOn func() error // what is done then
	}{
		{"suspend", func() error { return s.setSuspended(job.ID, &suspendRecord{By: 7}) }, func() error { return s.setSuspended(job.ID, &suspendRecord{By: 8}) }},
		{"resume", func() error { return s.setSuspended(job.ID, nil) }, nil},
	} {
		before := s.all()
		s.whileHanging(tc.do)
		if now := s.all(); !bytes.Equal(now, before) {
			t.Errorf("%s has come true:\n%s\nbefore:\n%s", tc.name, now, before)
		}
		if tc.goOn == nil {
			continue
		}
		if err := tc.goOn(); err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
	// A number is spent, but nobody has it.
	s.whileHanging(func() error { return s.newStepAs(step.ID{}, job.ID, &step.Record{}) })
	s.whileHanging(func() error { return s.newJobAs(step.ID{}, &jobRecord{}, nil, &step.Record{}) })
	if recs, err := s.steps(0); err != nil || len(recs) != 1 {
		t.Errorf("%d steps, %v", len(recs), err)
	}
	if jobs, err := s.jobs(); err != nil || len(jobs) != 1 {
		t.Errorf("%d jobs, %v", len(jobs), err)
	}
}

// TestEndedOnce: a result that was stored too late is not stored again, and whom it has
// forgotten is heard of.
func TestEndedOnce(t *testing.T) {
	s := newLateStore(t)
	var forgotten []step.ID
	s.forgot = func(ids []step.ID) { forgotten = append(forgotten, ids...) }
	var recs []*step.Record
	for range 3 {
		rec := &step.Record{State: step.Running}
		if err := s.newJobAs(step.ID{}, &jobRecord{}, nil, rec); err != nil {
			t.Fatal(err)
		}
		rec.State = step.Completed
		recs = append(recs, rec)
	}
	now := time.Now().Add(-time.Hour)
	if _, err := s.finish(recs[0], now); err != nil {
		t.Fatal(err)
	}
	s.whileHanging(func() error {
		_, err := s.finish(recs[1], now.Add(time.Second))
		return err
	})
	if !slices.Equal(forgotten, []step.ID{recs[0].ID}) {
		t.Errorf("forgotten are %v", forgotten)
	}
	if gone, err := s.finishLate(recs[1], now.Add(2*time.Second)); err != nil || len(gone) > 0 {
		t.Errorf("stored again: %v, %v", gone, err)
	}
	if keys, counted := s.ended(); keys != 1 || counted != 1 {
		t.Errorf("%d ended steps, counted as %d", keys, counted)
	}
	if gone, err := s.finishLate(recs[2], now.Add(3*time.Second)); err != nil || !slices.Equal(gone, []step.ID{recs[1].ID}) {
		t.Errorf("the next one forgets %v, %v", gone, err)
	}
}

// TestLeavesTransaction: nobody waits for a transaction that hangs in a page of the state.
func TestLeavesTransaction(t *testing.T) {
	s := newLateStore(t)
	s.gate.setPatience(100 * time.Millisecond)
	page, undone := make(chan struct{}), make(chan struct{})
	err := s.updateOr(func(*bbolt.Tx) error {
		close(undone)
		return nil
	}, func(*bbolt.Tx) error {
		<-page
		return nil
	})
	if !errors.As(err, new(errSpool)) {
		t.Errorf("stored: %v", err)
	}
	close(page)
	select {
	case <-undone:
	case <-time.After(testTimeout):
		t.Error("it is not taken back")
	}
	for s.gate.dead() != nil {
		time.Sleep(time.Millisecond)
	}
}
