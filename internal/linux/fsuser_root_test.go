package linux

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"stepd/internal/testkit"
)

// A thread that uses files as a user makes them as that one, and opens none that
// is not the user's; other threads stay what they are.
func TestRootSetFSUser(t *testing.T) {
	testkit.RequireRoot(t)
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	roots := filepath.Join(dir, "roots")
	if err := os.WriteFile(roots, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A file of each group: root's own, which the thread is to have no more, and one it is given.
	for name, gid := range map[string]int{"of root's group": 0, "of a group": 4711} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 0, gid), os.Chmod(path, 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		if err := SetFSUser(65534, 65533, []uint32{65533, 4711}); err != nil {
			done <- err
			return
		}
		if _, err := os.Open(roots); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("root's file as the user: %v", err)
		}
		if _, err := os.ReadFile(filepath.Join(dir, "of root's group")); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("a file of root's group as the user: %v", err)
		}
		if _, err := os.ReadFile(filepath.Join(dir, "of a group")); err != nil {
			t.Errorf("a file of one of the user's groups: %v", err)
		}
		done <- os.WriteFile(filepath.Join(dir, "theirs"), []byte("x"), 0o644)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(dir, "theirs"))
	if err != nil {
		t.Fatal(err)
	}
	if sys := st.Sys().(*syscall.Stat_t); sys.Uid != 65534 || sys.Gid != 65533 {
		t.Errorf("the file is of %d:%d", sys.Uid, sys.Gid)
	}
	if _, err := os.ReadFile(roots); err != nil {
		t.Errorf("another thread: %v", err)
	}
}
