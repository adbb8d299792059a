package slurmstepd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"stepd/internal/testkit"
	"stepd/slurm/wire"
)

// TestRootOrphanRemovesContainer: the keeper of an extern step removes the job's container when
// the last step of the job is over, and not before.
func TestRootOrphanRemovesContainer(t *testing.T) {
	testkit.RequireRoot(t)
	spool, node := t.TempDir(), t.TempDir()
	job := filepath.Join(node, "7")
	if err := os.MkdirAll(filepath.Join(job, ".7", "_tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"n1_7.0", "n1_7.1", "n1_70.0"} {
		if err := os.WriteFile(filepath.Join(spool, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := &orphan{will: will{Spool: spool, Node: "n1", Container: node, Step: wire.StepID{Job: 7}}}
	done := make(chan error, 1)
	go func() { done <- o.removeContainer(t.Context()) }()
	for _, name := range []string{"n1_7.0", "n1_7.1"} {
		if _, err := os.Stat(job); err != nil {
			t.Errorf("before the end of %s: %v", name, err)
		}
		if err := os.Remove(filepath.Join(spool, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(job); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the last step: %v", err)
	}
}
