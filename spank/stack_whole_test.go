package spank

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

// openForWriting opens a file that exists, as an editor that writes in place.
func openForWriting(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// needsLeases skips where the file system has none (they belong to the file's
// owner, which a test is).
func needsLeases(t testing.TB, dir string) {
	t.Helper()
	path := filepath.Join(dir, "lease")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if leased, err := lease(f); err != nil || !leased {
		t.Skipf("no leases here: %v", err)
	}
}

// TestStackWaitsForWriter: half a line is never read. The writer has written
// the first half when the reading begins, and the second comes later.
func TestStackWaitsForWriter(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "include d/*.conf\n", "d/a.conf": ""})
	needsLeases(t, dir)
	w := openForWriting(t, filepath.Join(dir, "d/a.conf"))
	if _, err := w.WriteString("required /half"); err != nil {
		t.Fatal(err)
	}
	var s Stack
	var err error
	var wg sync.WaitGroup
	wg.Go(func() { s, err = ReadStack(filepath.Join(dir, "plugstack.conf"), nil) })
	time.Sleep(50 * time.Millisecond) // long enough to read it wrongly
	if _, err := w.WriteString("/whole.so\n"); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	w.Close()
	wg.Wait()
	if err != nil || len(s.Plugins) != 1 || s.Plugins[0].Path != "/half/whole.so" {
		t.Errorf("got %+v, %v", s.Plugins, err)
	}
	if d := time.Since(start); d >= stackPatience {
		t.Errorf("the end of the writing was seen after %v", d)
	}
}

// TestStackWriterStays: who keeps the file open does not keep the step.
func TestStackWriterStays(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "required /a\n"})
	needsLeases(t, dir)
	file := filepath.Join(dir, "plugstack.conf")
	openForWriting(t, file)
	start := time.Now()
	_, err := ReadStack(file, nil)
	if !errors.Is(err, errWriter) || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "rename") {
		t.Errorf("got %v", err)
	}
	if d := time.Since(start); d < stackPatience || d > 20*stackPatience {
		t.Errorf("waited %v", d)
	}
}

// TestStackRenamedOverWriter: a new file under the name ends the wait for the
// writer of the old one.
func TestStackRenamedOverWriter(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "required /old\n", "new": "required /new\n"})
	needsLeases(t, dir)
	file := filepath.Join(dir, "plugstack.conf")
	openForWriting(t, file)
	var s Stack
	var err error
	var wg sync.WaitGroup
	start := time.Now()
	wg.Go(func() { s, err = ReadStack(file, nil) })
	time.Sleep(30 * time.Millisecond)
	if err := os.Rename(filepath.Join(dir, "new"), file); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if err != nil || len(s.Plugins) != 1 || s.Plugins[0].Path != "/new" || time.Since(start) >= stackPatience {
		t.Errorf("got %+v, %v after %v", s.Plugins, err, time.Since(start))
	}
}

// TestLeaseHoldsWriter: a writer that comes while the file is being read is
// held until the reading is done, and the SIGIO that the kernel sends for it
// does nothing to a Go program: this one.
func TestLeaseHoldsWriter(t *testing.T) {
	dir := stackDir(t, map[string]string{"f": "text"})
	needsLeases(t, dir)
	f, err := os.Open(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if leased, err := lease(f); err != nil || !leased {
		t.Fatal(leased, err)
	}
	// Another process: a lease does not hold its own.
	writer := exec.Command("sh", "-c", `echo open; exec >>"$0"; echo more`, f.Name())
	out, err := writer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := writer.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	// The lease is being broken when it is no longer ours in full: then the
	// signal was sent (fs/locks.c, __break_lease).
	for held := unix.F_RDLCK; held == unix.F_RDLCK; {
		if err := linux.OnFD(f, func(fd int) (err error) { held, err = unix.FcntlInt(uintptr(fd), unix.F_GETLEASE, 0); return err }); err != nil {
			t.Fatal(err)
		}
	}
	if text, err := readBounded(f); err != nil || text != "text" {
		t.Errorf("while the writer is held: %q, %v", text, err)
	}
	unlease(f)
	if err := writer.Wait(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(f.Name()); err != nil || string(b) != "textmore\n" {
		t.Errorf("the writer was not let go: %q, %v", b, err)
	}
}

// TestStackHammer rewrites two files that belong together, in place, truncated
// first, and by rename, while they are read: every reading finds both whole.
func TestStackHammer(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "include d/*.conf\n", "d/1.conf": "required /0 end\n"})
	needsLeases(t, dir)
	path := filepath.Join(dir, "d/1.conf")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			text := fmt.Sprintf("required /%d end\n", i)
			if i%2 == 0 { // by rename
				if os.WriteFile(path+".new", []byte(text), 0o644) != nil || os.Rename(path+".new", path) != nil {
					t.Error("cannot rename")
				}
				continue
			}
			w, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			for _, c := range []byte(text) { // a byte at a time
				if _, err := w.Write([]byte{c}); err != nil {
					t.Error(err)
				}
			}
			w.Close()
		}
	})
	failed := 0
	for range 300 {
		s, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil)
		if err != nil {
			failed++ // told, not half
			continue
		}
		if len(s.Plugins) != 1 || len(s.Plugins[0].Args) != 1 || s.Plugins[0].Args[0] != "end" {
			t.Fatalf("read half: %+v", s)
		}
	}
	close(stop)
	wg.Wait()
	if failed > 30 {
		t.Errorf("%d of 300 readings failed", failed)
	}
}

// TestStackChanged: a file that another has replaced since it was read is told.
func TestStackChanged(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"nothing":          func(string) error { return nil },
		"written":          func(dir string) error { return os.WriteFile(dir+"/d/1.conf", []byte("x"), 0o644) },
		"replaced":         func(dir string) error { return os.Rename(dir+"/d/2.conf", dir+"/d/1.conf") },
		"removed":          func(dir string) error { return os.Remove(dir + "/d/1.conf") },
		"one more matches": func(dir string) error { return os.WriteFile(dir+"/d/3.conf", nil, 0o644) },
		"the absent comes": func(dir string) error { return os.WriteFile(dir+"/later", nil, 0o644) },
		"something else":   func(dir string) error { return os.WriteFile(dir+"/d/1.confident", nil, 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := stackDir(t, map[string]string{"plugstack.conf": "include d/*.conf\ninclude later\n", "d/1.conf": "", "d/2.conf": "required /2\n"})
			r := newStackReader(nil, time.Now().Add(stackPatience))
			if err := r.read(filepath.Join(dir, "plugstack.conf"), nil); err != nil {
				t.Fatal(err)
			}
			if err := change(dir); err != nil {
				t.Fatal(err)
			}
			want := name != "nothing" && name != "something else"
			if got := r.changed(); (got != "") != want {
				t.Errorf("changed: %q", got)
			}
		})
	}
}

// TestReadStill is the reading for users who get no lease.
func TestReadStill(t *testing.T) {
	dir := stackDir(t, map[string]string{"f": "one"})
	f, err := os.Open(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	// Between the first look and the reading.
	if err := os.WriteFile(f.Name(), []byte("longer"), 0o644); err != nil {
		t.Fatal(err)
	}
	if text, info, err := readStill(f, before); err != nil || text != "longer" || info.Size() != 6 {
		t.Errorf("got %q, %v, %v", text, info, err)
	}
}

// TestStackDigest: the same for the same files, and for no others.
func TestStackDigest(t *testing.T) {
	dir := stackDir(t, map[string]string{"plugstack.conf": "include d/*\n", "d/1": "optional /a\n", "d/2": ""})
	digest := func() string {
		t.Helper()
		s, err := ReadStack(filepath.Join(dir, "plugstack.conf"), nil)
		if err != nil || s.Digest == "" {
			t.Fatal(s, err)
		}
		return s.Digest
	}
	first := digest()
	if again := digest(); again != first {
		t.Errorf("read twice: %s, %s", first, again)
	}
	if err := os.Rename(filepath.Join(dir, "d/2"), filepath.Join(dir, "d/3")); err != nil {
		t.Fatal(err)
	}
	second := digest()
	if err := os.WriteFile(filepath.Join(dir, "d/1"), []byte("optional /b\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if third := digest(); second == first || third == second {
		t.Errorf("%s, %s, %s", first, second, third)
	}
}
