package state

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"stepd/step"
)

// TestProposedRuns: of proposals of one run at once one is taken, and what it leaves is no
// earlier run's that another may forget.
func TestProposedRuns(t *testing.T) {
	s := newStates(t, 1000).open()
	id := step.ID{Job: 14}
	for run := range uint32(30) {
		var taken atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				rec := step.Record{State: step.Completed, Restarts: run}
				_, err := s.NewJobAs(id, &Job{Restarts: run}, nil, &rec)
				if err != nil {
					if !errors.As(err, new(TakenError)) {
						t.Error(err)
					}
					return
				}
				taken.Add(1)
				if _, err := s.Finish(&rec); err != nil {
					t.Error(err)
				}
				if err := s.EndJob(id.Job); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if rec, err := s.Step(id); err != nil || rec.Restarts != run || taken.Load() != 1 {
			t.Fatalf("run %d was taken %d times, and its record is %+v, %v", run, taken.Load(), rec, err)
		}
	}
}

// TestProposedRunForgotten: what the durable journal is still to forget of an earlier run is not
// the record of the next one.
func TestProposedRunForgotten(t *testing.T) {
	at := newStates(t, 1)
	at.cfg.KeepAge = time.Nanosecond
	s := at.open()
	accept := func(want step.ID, run uint32) *step.Record {
		t.Helper()
		rec := &step.Record{State: step.Completed, Restarts: run, BootID: "boot"}
		if _, err := s.NewJobAs(want, &Job{Origin: step.OriginBatch, Restarts: run}, nil, rec); err != nil {
			t.Fatal(err)
		}
		return rec
	}
	end := func(rec *step.Record) {
		t.Helper()
		if _, err := s.Finish(rec); err != nil {
			t.Fatal(err)
		}
		if err := s.EndJob(rec.ID.Job); err != nil {
			t.Fatal(err)
		}
	}
	again := step.ID{Job: 14, Step: step.BatchStep}
	end(accept(again, 0))
	for range 2 { // they take its place
		rec := &step.Record{State: step.Completed}
		if _, err := s.NewJobAs(step.ID{}, &Job{}, nil, rec); err != nil {
			t.Fatal(err)
		}
		end(rec)
	}
	if _, err := s.Step(again); !errors.Is(err, ErrUnknown) {
		t.Fatalf("it is not forgotten: %v", err)
	}
	accept(again, 1)
	end(accept(step.ID{Job: 13, Step: step.BatchStep}, 0))
	s = at.reopen(s, "another")
	if rec, err := s.Step(again); err != nil || rec.Restarts != 1 {
		t.Errorf("the run after it: %+v, %v", rec, err)
	}
}
