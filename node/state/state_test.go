package state

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/step"
)

// states is a place where a state is opened again and again.
type states struct {
	t   *testing.T
	cfg Config
}

func newStates(t *testing.T, keep int) *states {
	dir := t.TempDir()
	s := &states{t, Config{
		Spool: filepath.Join(dir, "spool"), Run: filepath.Join(dir, "run"), Boot: "boot", KeepAge: 300 * time.Second, KeepSteps: keep,
		Deadline: 20 * time.Second, Clock: HostClock(), Log: logrus.New(),
		LogSize: func(step.ID) int64 { return 0 },
	}}
	s.cfg.Log.SetOutput(t.Output())
	if err := errors.Join(os.Mkdir(s.cfg.Run, 0o755), os.Mkdir(s.cfg.Spool, 0o711)); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *states) open() *State {
	s.t.Helper()
	st, err := Open(s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { st.Close() })
	return st
}

// reopen closes a state and opens it again; in another boot nothing of the run directory
// is left.
func (s *states) reopen(st *State, boot string) *State {
	s.t.Helper()
	if err := st.Close(); err != nil {
		s.t.Fatal(err)
	}
	if boot != s.cfg.Boot {
		s.cfg.Boot = boot
		if err := os.Remove(filepath.Join(s.cfg.Run, "volatile.journal")); err != nil {
			s.t.Fatal(err)
		}
	}
	return s.open()
}

// TestStateNumbers: numbers go on over restarts, and never come again.
func TestStateNumbers(t *testing.T) {
	at := newStates(t, 1000)
	s := at.open()
	next := func() (Job, step.Record) {
		t.Helper()
		job, rec := Job{UID: 5}, step.Record{State: step.Starting}
		if _, err := s.NewJobAs(step.ID{}, &job, nil, &rec); err != nil {
			t.Fatal(err)
		}
		return job, rec
	}
	if s.Knows(1) {
		t.Error("a fresh state knows job 1")
	}
	job, rec := next()
	if job.ID != 1 || rec.ID != (step.ID{Job: 1, Step: 0}) {
		t.Errorf("first is job %d, step %s", job.ID, rec.ID)
	}
	inner := step.Record{State: step.Starting}
	if err := s.NewStepAs(step.ID{}, 1, &inner); err != nil || inner.ID != (step.ID{Job: 1, Step: 1}) {
		t.Errorf("second step is %s, %v", inner.ID, err)
	}
	s = at.reopen(s, "boot")
	if err := s.NewStepAs(step.ID{}, 1, &inner); err != nil || inner.ID.Step != 2 {
		t.Errorf("after the restart: step %s, %v", inner.ID, err)
	}
	if err := s.EndJob(1); err != nil {
		t.Fatal(err)
	}
	if err := s.NewStepAs(step.ID{}, 1, &inner); !errors.Is(err, ErrUnknown) {
		t.Errorf("a step of an ended job: %v", err)
	}
	if job, _ := next(); job.ID != 2 {
		t.Errorf("after the restart: job %d", job.ID)
	}
	if !s.Knows(1) || !s.Knows(2) || s.Knows(3) || s.Knows(0) {
		t.Error("knows is wrong")
	}
	if recs, err := s.Steps(1); err != nil || len(recs) != 3 || recs[2].ID.Step != 2 {
		t.Errorf("steps of job 1: %v, %v", recs, err)
	}
	if recs, err := s.Steps(0); err != nil || len(recs) != 4 {
		t.Errorf("%d steps, %v", len(recs), err)
	}
	s = at.reopen(s, "another")
	if job, _ := next(); job.ID <= 2 || !s.Knows(2) {
		t.Errorf("after the reboot: job %d", job.ID)
	}
}

// TestStateForgets the oldest steps that are both too old and too many.
func TestStateForgets(t *testing.T) {
	at := newStates(t, 2)
	c := &testClock{wall: time.Now(), run: time.Hour}
	at.cfg.Clock = c.clock()
	s := at.open()
	end := func(after time.Duration) []step.ID {
		t.Helper()
		c.pass(after, 0)
		job, rec := Job{}, step.Record{State: step.Completed}
		if _, err := s.NewJobAs(step.ID{}, &job, nil, &rec); err != nil {
			t.Fatal(err)
		}
		gone, err := s.Finish(&rec)
		if err != nil {
			t.Fatal(err)
		}
		return gone
	}
	for range 4 { // too many, but young
		if gone := end(time.Second); len(gone) != 0 {
			t.Fatalf("forgot %v", gone)
		}
	}
	gone := end(299 * time.Second)
	if len(gone) != 3 || gone[0].Job != 1 || gone[2].Job != 3 {
		t.Errorf("forgot %v, want jobs 1 to 3", gone)
	}
	if gone := end(10000 * time.Second); len(gone) != 1 || gone[0].Job != 4 {
		t.Errorf("forgot %v, want job 4: 2 are kept at any age", gone)
	}
	if _, err := s.Step(step.ID{Job: 1}); !errors.Is(err, ErrUnknown) {
		t.Errorf("step 1.0: %v", err)
	}
	for range 2 { // over a restart, too
		if recs, err := s.Steps(0); err != nil || len(recs) != 2 {
			t.Errorf("%d left, %v", len(recs), err)
		}
		s = at.reopen(s, "boot")
	}
	if gone := end(10000 * time.Second); len(gone) != 1 || gone[0].Job != 5 {
		t.Errorf("forgot %v, want job 5", gone)
	}
}

func TestStateDrain(t *testing.T) {
	at := newStates(t, 1000)
	s := at.open()
	if d, err := s.Drain(); err != nil || d.Drained {
		t.Errorf("fresh: %+v, %v", d, err)
	}
	want := Drain{Drained: true, Reason: "disk"}
	if err := s.SetDrain(want); err != nil {
		t.Fatal(err)
	}
	for _, boot := range []string{"boot", "another"} {
		s = at.reopen(s, boot)
		if d, err := s.Drain(); err != nil || d != want {
			t.Errorf("in %s: %+v, %v", boot, d, err)
		}
	}
}

// TestStateBatch: a reboot leaves of the batch jobs what they were, how they ended, and
// whether anything is left to be done for them; of others nothing.
func TestStateBatch(t *testing.T) {
	at := newStates(t, 2)
	at.cfg.KeepAge = time.Nanosecond
	s := at.open()
	batch := func(name string) *step.Record {
		t.Helper()
		job, rec := Job{Origin: step.OriginBatch, Name: name, GID: 7}, &step.Record{State: step.Starting, Name: name, BootID: "boot"}
		if _, err := s.NewJobAs(step.ID{}, &job, [][]byte{[]byte("X=1")}, rec); err != nil {
			t.Fatal(err)
		}
		return rec
	}
	end := func(rec *step.Record, over bool) {
		t.Helper()
		rec.State = step.Completed
		if _, err := s.Finish(rec); err != nil {
			t.Fatal(err)
		}
		if !over {
			return
		}
		if err := s.EndJob(rec.ID.Job); err != nil {
			t.Fatal(err)
		}
	}
	forgotten := batch("forgotten")
	end(forgotten, true)
	runs, ended, inEpilog := batch("runs"), batch("ended"), batch("in its epilog")
	if _, err := s.NewJobAs(step.ID{}, &Job{}, nil, &step.Record{State: step.Running}); err != nil {
		t.Fatal(err)
	}
	end(ended, true)
	end(inEpilog, false)
	for _, boot := range []string{"boot", "another", "a third"} {
		s = at.reopen(s, boot)
		jobs, err := s.Jobs()
		if boot == "boot" {
			jobs = jobs[:len(jobs)-1] // of the other one
		}
		if err != nil || len(jobs) != 2 || jobs[0].Name != "runs" || jobs[1].Name != "in its epilog" || jobs[1].GID != 7 {
			t.Errorf("%s: jobs %+v, %v", boot, jobs, err)
		}
		control, err := s.JobControl(runs.ID.Job)
		if err != nil || len(control) != 1 || string(control[0]) != "X=1" {
			t.Errorf("%s: control %q, %v", boot, control, err)
		}
		for _, want := range []*step.Record{runs, ended, inEpilog} {
			if rec, err := s.Step(want.ID); err != nil || rec.Name != want.Name || rec.State != want.State || rec.BootID != "boot" {
				t.Errorf("%s: %+v, %v", boot, rec, err)
			}
		}
		if rec, err := s.Step(forgotten.ID); !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: what was forgotten is %+v, %v", boot, rec, err)
		}
	}
	recs, err := s.Steps(0)
	if err != nil || len(recs) != 3 {
		t.Errorf("%d steps, %v", len(recs), err)
	}
}

// TestStateBetweenJournals: noded is killed when a batch job is in the durable journal and
// not in the volatile one. It was accepted, and its number is its own.
func TestStateBetweenJournals(t *testing.T) {
	at := newStates(t, 1000)
	s := at.open()
	if _, err := s.NewJobAs(step.ID{}, &Job{}, nil, &step.Record{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(at.cfg.Run, "volatile.journal")
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rec := &step.Record{State: step.Starting, Name: "accepted"}
	if _, err := s.NewJobAs(step.ID{}, &Job{Origin: step.OriginBatch}, nil, rec); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), os.WriteFile(path, before, 0o600)); err != nil {
		t.Fatal(err)
	}
	s = at.open()
	if got, err := s.Step(rec.ID); err != nil || got.Name != "accepted" {
		t.Errorf("the batch job: %+v, %v", got, err)
	}
	next := new(step.Record)
	if _, err := s.NewJobAs(step.ID{}, &Job{}, nil, next); err != nil || next.ID.Job != rec.ID.Job+1 {
		t.Errorf("the next job after %d is %s, %v", rec.ID.Job, next.ID, err)
	}
}

// TestOlderRecord: the record of a step that an older noded has stored has no name, and is read with
// its name.
func TestOlderRecord(t *testing.T) {
	s := newStates(t, 10).open()
	older := &step.Record{State: step.Starting}
	if _, err := s.NewJobAs(step.ID{}, &Job{}, nil, older); err != nil {
		t.Fatal(err)
	}
	older.IDName = ""
	if err := s.Put(older); err != nil {
		t.Fatal(err)
	}
	one, err := s.Step(older.ID)
	if err != nil {
		t.Fatal(err)
	}
	all, err := s.Steps(0)
	if err != nil {
		t.Fatal(err)
	}
	unended, err := s.Unended()
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range append(append(all, unended...), one) {
		if rec.IDName != "1.0" {
			t.Errorf("the name is %q", rec.IDName)
		}
	}
	if len(all) != 1 || len(unended) != 1 {
		t.Errorf("%d steps, and %d that have not ended", len(all), len(unended))
	}
}
