package linux

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func TestWriteWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
	}
	holds := func(want string, files int) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil || string(b) != want {
			t.Errorf("it holds %q, %v, want %q", b, err, want)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != files {
			t.Errorf("in the folder are %v, %v, want %d files", left, err, files)
		}
	}
	for _, sync := range []bool{false, true} {
		if err := WriteWhole(path, sync, text("first")); err != nil {
			t.Fatal(err)
		}
		holds("first", 1)
	}
	// A shorter one, over what a killed process has left.
	if err := os.WriteFile(path+".tmp", []byte("much of what was never whole"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteWhole(path, false, text("2")); err != nil {
		t.Fatal(err)
	}
	holds("2", 1)
	broken := errors.New("broken")
	err := WriteWhole(path, false, func(w io.Writer) error { return errors.Join(text("part")(w), broken) })
	if !errors.Is(err, broken) {
		t.Errorf("error %v, want %v", err, broken)
	}
	holds("2", 1)
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("another's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path+".tmp"); err != nil {
		t.Fatal(err)
	}
	if err := WriteWhole(path, false, text("3")); err == nil {
		t.Error("a link that waited there was followed")
	}
	if b, _ := os.ReadFile(victim); string(b) != "another's" {
		t.Errorf("what the link led to holds %q", b)
	}
	holds("2", 3)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}
