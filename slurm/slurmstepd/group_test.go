package slurmstepd

import (
	"os"
	"path/filepath"
	"testing"

	"stepd/step"
)

// TestRemoveMailbox: a sweep finds a component's mailbox, which has another step's name, and leaves
// other mailboxes.
func TestRemoveMailbox(t *testing.T) {
	dir := t.TempDir()
	file := func(id step.ID) string { return filepath.Join(dir, mailboxName(id)) }
	first, component, other := step.ID{Job: 7, Step: 1}, step.ID{Job: 8, Step: 1}, step.ID{Job: 9, Step: 1}
	for _, id := range []step.ID{first, other} {
		if err := os.WriteFile(file(id), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(mailboxName(first), file(component)); err != nil {
		t.Fatal(err)
	}
	if id, err := removeMailbox(dir, component); id != first || err != nil {
		t.Errorf("step %v, %v", id, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 || left[0].Name() != mailboxName(other) {
		t.Errorf("left are %v", left)
	}
	if id, err := removeMailbox(dir, other); id != other || err != nil {
		t.Errorf("step %v, %v", id, err)
	}
}
