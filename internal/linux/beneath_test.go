package linux

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestOpenBeneath(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, link := range [][2]string{{secret, "link"}, {outside, "dirlink"}, {"plain", "inner"}, {"/proc/self/root", "magic"}, {"nowhere", "dangling"}} {
		if err := os.Symlink(link[0], filepath.Join(dir, link[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "plain"), []byte("plain"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		flags int
		want  error
	}{
		{"plain", os.O_RDONLY, nil},
		{"sub/../plain", os.O_RDONLY, nil},
		{"none", os.O_RDONLY, unix.ENOENT},
		{"sub/new", os.O_WRONLY | os.O_CREATE | os.O_EXCL, nil},
		{"plain", os.O_WRONLY | os.O_CREATE | os.O_EXCL, unix.EEXIST},
		{"link", os.O_RDONLY, unix.ELOOP},
		{"inner", os.O_RDONLY, unix.ELOOP},
		{"dangling", os.O_WRONLY | os.O_CREATE, unix.ELOOP},
		{"dirlink/secret", os.O_RDONLY, unix.ELOOP},
		{"magic/etc/passwd", os.O_RDONLY, unix.ELOOP},
		{"../" + filepath.Base(outside) + "/secret", os.O_RDONLY, unix.EXDEV},
		{secret, os.O_RDONLY, unix.EXDEV},
	} {
		f, err := OpenBeneath(dir, tc.name, tc.flags, 0o600)
		if err == nil {
			f.Close()
		}
		if !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "nowhere")); err == nil {
		t.Error("a file was made through a link")
	}
}

// TestOpenBeneathRace: a folder that becomes a link and a folder again is never
// followed out of the directory.
func TestOpenBeneathRace(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	for _, d := range []string{filepath.Join(dir, "a"), outside} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d, "f"), []byte(d), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(outside, filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) // both exist
			}
		}
	})
	opened, refused := 0, 0
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		f, err := OpenBeneath(dir, "a/f", os.O_RDONLY, 0)
		if err != nil {
			refused++
			continue
		}
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil || string(b) != filepath.Join(dir, "a") {
			t.Errorf("read %q, %v", b, err)
			break
		}
		opened++
	}
	close(stop)
	wg.Wait()
	if opened == 0 || refused == 0 {
		t.Errorf("%d opened, %d refused: the race did not take place", opened, refused)
	}
}
