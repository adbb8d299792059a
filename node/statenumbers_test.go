package node

import (
	"errors"
	"stepd/step"
	"sync"
	"sync/atomic"
	"testing"
	"time"
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
				_, err := s.newJobAs(id, &jobRecord{Restarts: run}, nil, &rec)
				if err != nil {
					if !errors.As(err, new(errTaken)) {
						t.Error(err)
					}
					return
				}
				taken.Add(1)
				if _, err := s.finish(&rec); err != nil {
					t.Error(err)
				}
				if err := s.endJob(id.Job); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if rec, err := s.step(id); err != nil || rec.Restarts != run || taken.Load() != 1 {
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
		if _, err := s.newJobAs(want, &jobRecord{Origin: step.OriginBatch, Restarts: run}, nil, rec); err != nil {
			t.Fatal(err)
		}
		return rec
	}
	end := func(rec *step.Record) {
		t.Helper()
		if _, err := s.finish(rec); err != nil {
			t.Fatal(err)
		}
		if err := s.endJob(rec.ID.Job); err != nil {
			t.Fatal(err)
		}
	}
	again := step.ID{Job: 14, Step: step.BatchStep}
	end(accept(again, 0))
	for range 2 { // they take its place
		rec := &step.Record{State: step.Completed}
		if _, err := s.newJobAs(step.ID{}, &jobRecord{}, nil, rec); err != nil {
			t.Fatal(err)
		}
		end(rec)
	}
	if _, err := s.step(again); !errors.Is(err, errUnknown) {
		t.Fatalf("it is not forgotten: %v", err)
	}
	accept(again, 1)
	end(accept(step.ID{Job: 13, Step: step.BatchStep}, 0))
	s = at.reopen(s, "another")
	if rec, err := s.step(again); err != nil || rec.Restarts != 1 {
		t.Errorf("the run after it: %+v, %v", rec, err)
	}
}
