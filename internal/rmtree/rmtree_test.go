package rmtree

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// deep makes n directories, each in the one before it.
func deep(t *testing.T, dir string, n int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range n {
		if err == nil {
			err = unix.Mkdirat(fd, "d", 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		var next int
		next, err = unix.Openat(fd, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
}

// TestRemove: a directory goes with all that a user may have made in it, and nothing else does.
func TestRemove(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm") // in memory, as noded's run directory: a disk takes seconds
	for name, make := range map[string]func(t *testing.T, dir string) error{
		"nothing":       func(*testing.T, string) error { return nil },
		"25,000 levels": func(t *testing.T, dir string) error { deep(t, dir, 25_000); return nil },
		"a file as trash": func(t *testing.T, dir string) error {
			deep(t, dir, 100)
			return os.WriteFile(dir+"/"+trashName, nil, 0o600)
		},
		"a link as trash": func(t *testing.T, dir string) error { deep(t, dir, 100); return os.Symlink("/", dir+"/"+trashName) },
		"files in a trash": func(t *testing.T, dir string) error {
			deep(t, dir, 100)
			err := os.Mkdir(dir+"/"+trashName, 0o700)
			for i := range 5 {
				err = errors.Join(err, os.WriteFile(fmt.Sprintf("%s/%s/%d", dir, trashName, i), nil, 0o600))
			}
			return err
		},
		"a link out": func(_ *testing.T, dir string) error { return os.Symlink("../other", dir+"/link") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(dir+"/gone", 0o755), os.Mkdir(dir+"/other", 0o755), os.WriteFile(dir+"/other/file", nil, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := make(t, dir+"/gone"); err != nil {
				t.Fatal(err)
			}
			for range 2 { // what is gone is no error
				if err := RemovePath(t.Context(), dir+"/gone"); err != nil {
					t.Fatal(err)
				}
			}
			if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) != 1 {
				t.Errorf("%q is left, %v", left, err)
			}
			if _, err := os.Stat(dir + "/other/file"); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRemoveNoDirectory: a file and a link go, and what the link leads to stays.
func TestRemoveNoDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(dir+"/file", nil, 0o600), os.Symlink("file", dir+"/link")); err != nil {
		t.Fatal(err)
	}
	if err := RemovePath(t.Context(), dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir + "/file"); err != nil {
		t.Fatal(err)
	}
	if err := RemovePath(t.Context(), dir+"/file"); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(dir + "/*"); err != nil || len(left) != 0 {
		t.Errorf("%q is left, %v", left, err)
	}
}
