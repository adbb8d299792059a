package state

import (
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/step"
)

// oldSpool is a place with a state of the last release: runs.db has two ended steps, an ended
// batch job (3), one that runs (4), a step that runs (5.0), and a drained node; waits.db has
// one ended step, a batch job that runs (2), one that waits (3), and one that is held (4).
func oldSpool(t *testing.T, name string) (at *states, path string) {
	t.Helper()
	at = newStates(t, 1000)
	f, err := os.Open(filepath.Join("testdata", "oldstate", name+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unzip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(unzip)
	path = filepath.Join(at.cfg.Spool, oldStateName)
	if err := errors.Join(err, os.WriteFile(path, text, 0o600)); err != nil {
		t.Fatal(err)
	}
	return at, path
}

// TestImport: the state of the last release goes on, once.
func TestImport(t *testing.T) {
	at, path := oldSpool(t, "runs.db")
	s := at.open()
	for range 2 {
		recs, err := s.Steps(0)
		if err != nil || len(recs) != 5 {
			t.Fatalf("steps %+v, %v", recs, err)
		}
		for i, want := range []step.State{step.Completed, step.Failed, step.Completed, step.Running, step.Running} {
			if rec := recs[i]; rec.State != want && (want != step.Running || rec.State.Final()) || int(rec.ID.Job) != i+1 {
				t.Errorf("step %+v, want %s", rec, want)
			}
		}
		if recs[4].StepdPID == 0 || recs[4].BootID == "" {
			t.Errorf("the one that runs: %+v", recs[4])
		}
		jobs, err := s.Jobs()
		if err != nil || len(jobs) != 2 || jobs[0].Origin != step.OriginBatch || jobs[1].ID != 5 {
			t.Errorf("jobs %+v, %v", jobs, err)
		}
		if d, err := s.Drain(); err != nil || d != (Drain{Drained: true, Reason: "fans are broken"}) {
			t.Errorf("drain %+v, %v", d, err)
		}
		if id, err := s.NextID(step.ID{}, new(Job), false); err != nil || id.Job != 6 {
			t.Errorf("the next job is %d, %v", id.Job, err)
		}
		s = at.reopen(s, at.cfg.Boot)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old file: %v", err)
	}
	if _, err := os.Stat(path + ".imported"); err != nil {
		t.Error(err)
	}
	// A reboot before anything else happens: the batch jobs are kept.
	s = at.reopen(s, "another")
	if recs, err := s.Steps(0); err != nil || len(recs) != 2 || recs[0].ID.Job != 3 || recs[1].ID.Job != 4 {
		t.Errorf("after a reboot: %+v, %v", recs, err)
	}
}

// TestImportRefused: what this release does not do, or cannot read, is named, and left.
func TestImportRefused(t *testing.T) {
	at, path := oldSpool(t, "waits.db")
	_, err := Open(at.cfg)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "it has batch jobs that wait: 3, 4: finish or cancel them with that release, or move the file away") {
		t.Errorf("jobs that wait: %v", err)
	}
	at, path = oldSpool(t, "runs.db")
	if err := os.Truncate(path, 3*4096); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(at.cfg); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "move the file away") {
		t.Errorf("a file that was cut: %v", err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if recs, err := at.open().Steps(0); err != nil || len(recs) != 0 {
		t.Errorf("without it: %+v, %v", recs, err)
	}
	several := &oldState{several: []string{"step 7.0"}}
	if err := several.refusal(path); err == nil || !strings.Contains(err.Error(), "steps and jobs of several nodes: step 7.0") {
		t.Errorf("a step of several nodes: %v", err)
	}
}
