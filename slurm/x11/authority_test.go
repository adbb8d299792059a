package x11

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// measured is what xauth 1.1.2 has written for `add n1/unix:88 MIT-MAGIC-COOKIE-1`.
const measured = "0100" + "00026e31" + "00023838" + "00124d49542d4d414749432d434f4f4b49452d31" + "0010" + cookie

func raw(t *testing.T, text string) []byte {
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestKey: the file has the display's key, as xauth writes it, and is the user's alone.
func TestKey(t *testing.T) {
	x := newXServer(t)
	f := x.start(x.config())
	number, path := f.Display()
	st, err := os.Stat(path)
	if err != nil || st.Mode() != 0o600 {
		t.Fatalf("%v, %v", st, err)
	}
	list, err := readEntries(path)
	host, _ := os.Hostname()
	if err != nil || len(list) != 1 || !list[0].of(host, strconv.Itoa(int(number))) || string(list[0].kind) != cookieKind || !bytes.Equal(list[0].cookie, raw(t, cookie)) {
		t.Errorf("%+v, %v", list, err)
	}
	if number < displayFirst || number > displayLast {
		t.Errorf("display %d", number)
	}
	e := entry{local, []byte("n1"), []byte("88"), []byte(cookieKind), raw(t, cookie)}
	if b := e.pack(nil); !bytes.Equal(b, raw(t, measured)) {
		t.Errorf("%x", b)
	}
}

// TestRemove: what a daemon has left that was killed is found by its note, and goes.
func TestRemove(t *testing.T) {
	x := newXServer(t)
	cfg := x.config()
	f := x.start(cfg)
	if text, err := os.ReadFile(cfg.Note); err != nil || bytes.Contains(text, []byte(cookie)) {
		t.Errorf("the note is %s, %v", text, err)
	}
	for range 2 { // the keeper's orphan, and a sweep
		if err := Remove(cfg.Note); err != nil {
			t.Error(err)
		}
		for _, path := range []string{cfg.Note, f.authority.Path} {
			if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%q: %v", path, err)
			}
		}
	}
	if err := os.WriteFile(cfg.Note, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Remove(cfg.Note); err == nil {
		t.Error("a note that is none")
	}
	if _, err := os.Lstat(cfg.Note); err == nil {
		t.Error("a note that is none stays")
	}
}

// TestShared: the user's own file keeps its other entries, and loses the job's with the display.
func TestShared(t *testing.T) {
	x := newXServer(t)
	cfg := x.config()
	cfg.Home = t.TempDir()
	path := filepath.Join(cfg.Home, ".Xauthority")
	wild := entry{0xffff, nil, nil, []byte(cookieKind), []byte("0123456789abcdef")}
	if err := os.WriteFile(path, wild.pack(raw(t, measured)), 0o600); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path)
	f := x.start(cfg)
	if _, at := f.Display(); at != path {
		t.Errorf("the key is in %q", at)
	}
	list, err := readEntries(path)
	if err != nil || len(list) != 3 || !list[2].of(f.authority.Host, strconv.Itoa(f.authority.Display)) {
		t.Errorf("%+v, %v", list, err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("%x, %v\nwant %x", after, err, before)
	}
	if left, _ := os.ReadDir(cfg.Home); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

// TestSharedRefused: a file that is none of xauth's, or that another program changes, stays as it is.
func TestSharedRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(path string) error
		want  string
	}{
		"garbage":        {func(p string) error { return os.WriteFile(p, []byte("garbage"), 0o600) }, "its last entry is cut off"},
		"a FIFO":         {func(p string) error { return unix.Mkfifo(p, 0o600) }, "it is no regular file"},
		"a directory":    {func(p string) error { return os.Mkdir(p, 0o700) }, "it is no regular file"},
		"too large":      {func(p string) error { return os.WriteFile(p, make([]byte, fileMax+2), 0o600) }, "it has more than"},
		"a held lock":    {func(p string) error { return errors.Join(create(p+"-c", nil), os.Link(p+"-c", p+"-l")) }, "another program holds its lock"},
		"a dangling one": {func(p string) error { return os.Symlink("/nonexistent/x", p+"-c") }, "another program holds its lock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), ".Xauthority")
			if err := tc.spoil(path); err != nil {
				t.Fatal(err)
			}
			before, _ := os.Lstat(path)
			if err := edit(path, "n1", "88", []byte("key")); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			after, _ := os.Lstat(path)
			if before != nil && (after == nil || after.ModTime() != before.ModTime() || after.Size() != before.Size()) {
				t.Errorf("%v has become %v", before, after)
			}
			if _, err := os.Lstat(path + "-n"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("left: %v", err)
			}
		})
	}
}

// TestLock: a lock that is given up is taken, and so is one of a program that was killed.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), ".Xauthority")
	for range 2 {
		if err := lock(path); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-2 * lockDead)
		if err := os.Chtimes(path+"-c", old, old); err != nil {
			t.Fatal(err)
		}
	}
	taken := make(chan error)
	os.Chtimes(path+"-c", time.Now(), time.Now())
	go func() { taken <- lock(path) }()
	unlock(path)
	if err := <-taken; err != nil {
		t.Error(err)
	}
}

// FuzzParse: a file that can be read is written as it was.
func FuzzParse(f *testing.F) {
	b, _ := hex.DecodeString(measured)
	f.Add(b)
	f.Add(append(b, b...))
	f.Add(b[:20])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		list, err := parse(b)
		if err != nil {
			return
		}
		var again []byte
		for i := range list {
			again = list[i].pack(again)
		}
		if !bytes.Equal(again, b) {
			t.Errorf("%x has become %x", b, again)
		}
	})
}
