package linux

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestInotify(t *testing.T) {
	i, err := NewInotify()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := i.Watch(dir, unix.IN_CREATE); err != nil {
		t.Fatal(err)
	}
	if err := i.Wait(time.Now()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing happened: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := i.Wait(time.Now().Add(10 * time.Second)); err != nil {
		t.Errorf("a file was made: %v", err)
	}
	if err := i.Wait(time.Now()); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("told twice: %v", err)
	}
	if err := i.Watch(filepath.Join(dir, "none"), unix.IN_CREATE); !errors.Is(err, unix.ENOENT) {
		t.Errorf("what is not there: %v", err)
	}
	ended := make(chan error)
	go func() { ended <- i.Wait(time.Time{}) }()
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if err := i.Watch(dir, unix.IN_CREATE); err == nil {
		t.Error("a closed one can watch")
	}
}
