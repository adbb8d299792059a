package linux

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWatches: many watches of several files share one instance, each reports its own file, and
// the instance is gone with the last of them.
func TestWatches(t *testing.T) {
	var w Watches
	dir := t.TempDir()
	await := func(c <-chan struct{}) {
		select {
		case <-c:
		case <-time.After(time.Minute):
			t.Error("no word of a change")
		}
	}
	for range 2 {
		var wg sync.WaitGroup
		var stops []func()
		for _, name := range []string{"a", "b"} {
			path := filepath.Join(dir, name)
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			for range 100 {
				changed, stop, err := w.Add(path, unix.IN_MODIFY)
				if err != nil {
					t.Fatal(err)
				}
				stops = append(stops, stop)
				wg.Go(func() { await(changed) })
			}
			if n := len(w.byWD); n != len(stops)/100 {
				t.Errorf("%d files are watched, want %d", n, len(stops)/100)
			}
			if _, err := f.WriteString("x"); err != nil {
				t.Fatal(err)
			}
			wg.Wait()
		}
		if err := os.Remove(filepath.Join(dir, "a")); err != nil {
			t.Fatal(err)
		}
		for _, stop := range stops {
			stop()
		}
		if w.f != nil {
			t.Error("the instance is left")
		}
	}
	if _, _, err := w.Add(filepath.Join(dir, "none"), unix.IN_MODIFY); err == nil || w.f != nil {
		t.Errorf("a file that is not: %v", err)
	}
}
