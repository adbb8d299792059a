package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRootKeyrings: a step has a session keyring of its own, which its tasks share: no task sees a
// key of who has started noded, or of another step. The user's own keyring is in it.
func TestRootKeyrings(t *testing.T) {
	waits(t)
	dir, err := os.MkdirTemp(workRoot, "stepd-keys-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	keys := filepath.Join(dir, "keys")
	compile(t, "testdata/tasks/keys.c", "-o", keys)
	n := startNode(t, site{Before: []string{keys, "with", "of-root"}})
	const missing = ": Required key not available\n"
	// The tasks know of each other's keys when both have theirs.
	both := `$0 add of-$SLURM_PROCID && : >added.$SLURM_PROCID && until [ -e added.0 -a -e added.1 ]; do sleep 0.05; done; $0 see of-root of-0 of-1`
	if r := n.ctl(t, "run", "-n2", "sh", "-c", both, keys); r.out != strings.Repeat("of-root"+missing+"of-0: seen\nof-1: seen\n", 2) {
		t.Errorf("the first step: %v", r)
	}
	if r := n.ctl(t, "run", keys, "user", "of-user"); r.code != 0 {
		t.Errorf("a key of the user's: %v", r)
	}
	if r := n.ctl(t, "run", keys, "see", "of-root", "of-0", "of-user"); r.out != "of-root"+missing+"of-0"+missing+"of-user: seen\n" {
		t.Errorf("the next step: %v", r)
	}
	script := n.userFile(t, "script", "#!/bin/sh\n"+keys+" see of-root of-0 of-user\n", 0o755)
	out := filepath.Join(n.wd, "out")
	ok(t, "batch", n.ctl(t, "batch", "-W", "-o", out, script))
	if got := readFile(t, out); got != "of-root"+missing+"of-0"+missing+"of-user: seen\n" {
		t.Errorf("a batch script: %q", got)
	}
	if r := n.do(t, call{args: []string{"run", keys, "see", "of-root", "of-0", "of-user"}, uid: bob.uid}); r.out != "of-root"+missing+"of-0"+missing+"of-user"+missing {
		t.Errorf("another user: %v", r)
	}
}
