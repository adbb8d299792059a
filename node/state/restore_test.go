package state

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/step"
)

// TestRestore: what is known of a job from its steps, in the order of their sockets.
func TestRestore(t *testing.T) {
	s := newStates(t, 1000).open()
	for job, tc := range map[uint32]struct {
		steps []uint32
		want  Job
	}{
		4: {[]uint32{0}, Job{Origin: step.OriginRun, Implicit: true, CPUs: "0", NextStep: 1}},
		5: {[]uint32{1, 2}, Job{Origin: step.OriginRun, CPUs: "1-2", NextStep: 3}},
		6: {[]uint32{3, step.ExternStep}, Job{Origin: step.OriginRun, CPUs: "0-3", NextStep: 4}},
		7: {[]uint32{0, 3, step.BatchStep}, Job{Origin: step.OriginBatch, Implicit: true, CPUs: "0-3", NextStep: 4}},
		8: {[]uint32{step.BatchStep, 5}, Job{Origin: step.OriginBatch, Implicit: true, CPUs: "0-3,5", NextStep: 6}},
	} {
		for _, id := range tc.steps {
			rec := &step.Record{ID: step.ID{Job: job, Step: id}, UID: 1000, CPUs: step.FormatCPUList([]int{int(id % 100)})}
			if id >= step.BatchStep {
				rec.CPUs = "0-3"
			}
			if err := s.Restore(rec, 1001); err != nil {
				t.Fatal(err)
			}
		}
		jobs, err := s.Jobs()
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range jobs {
			if j.ID == job && (j.Origin != tc.want.Origin || j.Implicit != tc.want.Implicit || j.CPUs != tc.want.CPUs || j.NextStep != tc.want.NextStep || j.GID != 1001) {
				t.Errorf("job %d: %+v, want %+v", job, j, tc.want)
			}
		}
		if !s.Knows(job) {
			t.Errorf("the number %d is not spent", job)
		}
	}
}

// TestOldStateRefused: the state of a version that had a queue is named, and left; without it
// the node starts empty.
func TestOldStateRefused(t *testing.T) {
	at := newStates(t, 1000)
	path := filepath.Join(at.cfg.Spool, oldStateName)
	if err := os.WriteFile(path, []byte("bolt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(at.cfg); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "finish or cancel them with that version, then move the file away") {
		t.Errorf("an old state: %v", err)
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if recs, err := at.open().Steps(0); err != nil || len(recs) != 0 {
		t.Errorf("without it: %+v, %v", recs, err)
	}
}
