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
	file := func(key string) string { return filepath.Join(dir, mailboxName(key)) }
	all, first, component, other := "7.1.7001", step.ID{Job: 7, Step: 1}, step.ID{Job: 8, Step: 1}, step.ID{Job: 9, Step: 1}
	for _, key := range []string{all, first.Key(), other.Key()} {
		if err := os.WriteFile(file(key), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(mailboxName(all), file(component.Key())); err != nil {
		t.Fatal(err)
	}
	if key, err := removeMailbox(dir, component); key != all || err != nil {
		t.Errorf("step %q, %v", key, err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 || left[0].Name() != mailboxName(first.Key()) || left[1].Name() != mailboxName(other.Key()) {
		t.Errorf("left are %v", left)
	}
	if key, err := removeMailbox(dir, other); key != other.Key() || err != nil {
		t.Errorf("step %q, %v", key, err)
	}
}
