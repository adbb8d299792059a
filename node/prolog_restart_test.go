package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"stepd/step"
)

// TestPrologOverRestart: a prolog that was interrupted fails its step, of which a client
// has the files.
func TestPrologOverRestart(t *testing.T) {
	t.Parallel()
	hold := filepath.Join(t.TempDir(), "hold")
	s := newScripted(t, hangs(t, hold), "", nil)
	id := s.run(1000, request("exit", "0"))
	await(t, func() bool { return slices.Contains(s.told(), "prolog.sh") })
	s.restart()
	rec := s.wait(id)
	if rec.State != step.Failed || !strings.Contains(rec.Reason, "noded ended while it started the step") {
		t.Errorf("record %+v", rec)
	}
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")
}

// TestBatchPrologOverRestart: a batch job whose prolog was interrupted is lost, and not run
// again; one that was cancelled meanwhile is CANCELLED.
func TestBatchPrologOverRestart(t *testing.T) {
	t.Parallel()
	hold := filepath.Join(t.TempDir(), "hold")
	s := newScripted(t, hangs(t, hold), "", nil)
	id := s.batch("exit 4")
	await(t, func() bool { return slices.Contains(s.told(), "prolog.sh") })
	if running, over := s.scripts.Prologs(); running != 1 || over == nil {
		t.Errorf("%d prologs run", running)
	}
	gone := s.batch("exit 0")
	await(t, func() bool { running, _ := s.scripts.Prologs(); return running == 2 })
	s.cancelJob(gone)
	_, over := s.scripts.Prologs()
	s.stop()
	<-over
	if running, _ := s.scripts.Prologs(); running != 0 {
		t.Errorf("%d prologs run in a noded that has stopped", running)
	}
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	s.testNode = start(t, s.dir, s.cfg)
	s.lost(id)
	if rec := s.wait(gone); rec.State != step.Cancelled {
		t.Errorf("the cancelled: %+v", rec)
	}
	s.idle()
}

// lost checks the end of a batch job whose prolog ran when noded ended.
func (s *scripted) lost(id step.ID) {
	s.t.Helper()
	if rec := s.wait(id); rec.State != step.NodeFail || *rec.ExitCode != 1 || rec.Restarts != 0 || !strings.Contains(rec.Reason, "noded ended while it started the step") {
		s.t.Errorf("step %s: %+v", id, rec)
	}
}

// TestBatchPrologOverKill: a batch job whose prolog ran when noded was killed is lost.
func TestBatchPrologOverKill(t *testing.T) {
	t.Parallel()
	hold := filepath.Join(t.TempDir(), "hold")
	s := newScripted(t, hangs(t, hold), "", nil)
	id, gone := s.batch("exit 4"), s.batch("exit 4")
	await(t, func() bool { running, _ := s.scripts.Prologs(); return running == 2 })
	s.cancelJob(gone)
	kill := s.asKilled()
	s.stop()
	kill()
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	s.testNode = start(t, s.dir, s.cfg)
	s.lost(id)
	s.lost(gone)
	s.idle()
}

// TestEpilogOverRestart: an epilog that was interrupted is run again, with what
// it is told.
func TestEpilogOverRestart(t *testing.T) {
	t.Parallel()
	hold := filepath.Join(t.TempDir(), "hold")
	s := newScripted(t, "", hangs(t, hold), nil)
	s.wait(s.run(1000, s.control(request("exit", "6"), "MINE=1")))
	await(t, func() bool { return slices.Contains(s.told(), "epilog.sh") })
	if d := s.doc(); d.State != "ALLOCATED" || d.FreeCPUs != 3 {
		t.Errorf("while the epilog runs: %+v", d)
	}
	s.wantJob("COMPLETING", "epilog")
	s.stop()
	if err := os.Remove(hold); err != nil {
		t.Fatal(err)
	}
	s.testNode = start(t, s.dir, s.cfg)
	s.idle()
	s.wantTold("plugins prolog", "prolog.sh", "epilog.sh", "plugins epilog", "epilog.sh")
	for _, line := range s.lines()[2:] {
		if !strings.Contains(line, "SPANK_MINE=1") || !strings.Contains(line, "SLURM_JOB_EXIT_CODE=1536 ") {
			t.Errorf("%s", line)
		}
	}
	if d := s.doc(); d.State != "IDLE" {
		t.Errorf("node %+v", d)
	}
}
