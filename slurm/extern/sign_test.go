package extern

import (
	"os"
	"path/filepath"
	"testing"
)

// TestSign: a job's directory stands while the job does, and the user's with the last of them.
func TestSign(t *testing.T) {
	mounts := t.TempDir()
	if got := Sign(mounts, 7001, 12); got != "" {
		t.Errorf("without a freezer: %q", got)
	}
	freezer := filepath.Join(mounts, "freezer")
	if err := os.Mkdir(freezer, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(freezer, "cgroup.procs"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	user := filepath.Join(freezer, "slurm", "uid_7001")
	first, second := Sign(mounts, 7001, 12), Sign(mounts, 7001, 13)
	if first != filepath.Join(user, "job_12") || second != filepath.Join(user, "job_13") {
		t.Fatalf("%q, %q", first, second)
	}
	exists := func(path string, want bool) {
		t.Helper()
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%q: %v", path, err)
		}
	}
	for _, sign := range []string{first, second, second} {
		if err := PutSign(sign); err != nil {
			t.Error(err)
		}
		exists(sign, true)
	}
	if err := TakeSign(first); err != nil {
		t.Error(err)
	}
	exists(first, false)
	exists(second, true)
	for range 2 { // the keeper's orphan may come after its daemon
		if err := TakeSign(second); err != nil {
			t.Error(err)
		}
		exists(user, false)
	}
	if err := PutSign(filepath.Join(mounts, "freezer", "cgroup.procs", "job_1")); err == nil {
		t.Error("a file in the way is no error")
	}
}
