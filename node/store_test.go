package node

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"stepd/step"
)

func reopen(t *testing.T, path string, keep int) *store {
	t.Helper()
	s, err := openStore(path, 300*time.Second, keep)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.close() })
	return s
}

// TestStoreNumbers: numbers go on over restarts, and never come again.
func TestStoreNumbers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := reopen(t, path, 1000)
	next := func() (jobRecord, step.Record) {
		t.Helper()
		job, rec := jobRecord{UID: 5}, step.Record{State: step.Starting}
		if err := s.newJobAs(step.ID{}, &job, nil, &rec); err != nil {
			t.Fatal(err)
		}
		return job, rec
	}
	if s.knows(1) {
		t.Error("a fresh store knows job 1")
	}
	job, rec := next()
	if job.ID != 1 || rec.ID != (step.ID{Job: 1, Step: 0}) {
		t.Errorf("first is job %d, step %s", job.ID, rec.ID)
	}
	inner := step.Record{State: step.Starting}
	if err := s.newStepAs(step.ID{}, 1, &inner); err != nil || inner.ID != (step.ID{Job: 1, Step: 1}) {
		t.Errorf("second step is %s, %v", inner.ID, err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, path, 1000)
	if err := s.newStepAs(step.ID{}, 1, &inner); err != nil || inner.ID.Step != 2 {
		t.Errorf("after the restart: step %s, %v", inner.ID, err)
	}
	if err := s.endJob(1); err != nil {
		t.Fatal(err)
	}
	if err := s.newStepAs(step.ID{}, 1, &inner); !errors.Is(err, errUnknown) {
		t.Errorf("a step of an ended job: %v", err)
	}
	if job, _ := next(); job.ID != 2 {
		t.Errorf("after the restart: job %d", job.ID)
	}
	if !s.knows(1) || !s.knows(2) || s.knows(3) || s.knows(0) {
		t.Error("knows is wrong")
	}
	if recs, err := s.steps(1); err != nil || len(recs) != 3 || recs[2].ID.Step != 2 {
		t.Errorf("steps of job 1: %v, %v", recs, err)
	}
	if recs, err := s.steps(0); err != nil || len(recs) != 4 {
		t.Errorf("%d steps, %v", len(recs), err)
	}
}

// TestStoreForgets the oldest of those that are both too old and too many.
func TestStoreForgets(t *testing.T) {
	s := reopen(t, filepath.Join(t.TempDir(), "state.db"), 2)
	begin := time.Now()
	end := func(at time.Duration) []step.ID {
		t.Helper()
		job, rec := jobRecord{}, step.Record{State: step.Completed}
		if err := s.newJobAs(step.ID{}, &job, nil, &rec); err != nil {
			t.Fatal(err)
		}
		gone, err := s.finish(&rec, begin.Add(at))
		if err != nil {
			t.Fatal(err)
		}
		return gone
	}
	for i := range 4 { // too many, but young
		if gone := end(time.Duration(i) * time.Second); len(gone) != 0 {
			t.Fatalf("forgot %v", gone)
		}
	}
	gone := end(302 * time.Second)
	if len(gone) != 3 || gone[0].Job != 1 || gone[2].Job != 3 {
		t.Errorf("forgot %v, want jobs 1 to 3", gone)
	}
	if gone := end(10000 * time.Second); len(gone) != 1 || gone[0].Job != 4 {
		t.Errorf("forgot %v, want job 4: 2 are kept at any age", gone)
	}
	if _, err := s.step(step.ID{Job: 1}); !errors.Is(err, errUnknown) {
		t.Errorf("step 1.0: %v", err)
	}
	if recs, err := s.steps(0); err != nil || len(recs) != 2 {
		t.Errorf("%d left, %v", len(recs), err)
	}
}

func TestStoreDrain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := reopen(t, path, 1000)
	if d, err := s.drain(); err != nil || d.Drained {
		t.Errorf("fresh: %+v, %v", d, err)
	}
	want := drainRecord{Drained: true, Reason: "disk"}
	if err := s.setDrain(want); err != nil {
		t.Fatal(err)
	}
	s.close()
	if d, err := reopen(t, path, 1000).drain(); err != nil || d != want {
		t.Errorf("after the restart: %+v, %v", d, err)
	}
}
