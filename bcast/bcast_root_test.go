package bcast

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
)

const testUID = 65534

func sent(path, text string) step.SentFile {
	sum := sha256.Sum256([]byte(text))
	return step.SentFile{Path: path, Size: int64(len(text)), Mode: 0o755, SHA256: hex.EncodeToString(sum[:])}
}

func userDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "stepd-bcast-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, testUID, testUID); err != nil {
		t.Fatal(err)
	}
	return dir
}

func receiver(dir string, files ...step.SentFile) *Receiver {
	return New(&step.Spec{
		Request: step.Request{Cwd: dir, Sent: files}, ID: step.ID{Job: 7},
		User: step.User{UID: testUID, GID: testUID, Groups: []uint32{testUID}},
	}, nil)
}

func TestRootReceive(t *testing.T) {
	testkit.RequireRoot(t)
	dir := userDir(t)
	r := receiver(dir, sent("prog.%j", "program"), sent("liba.so", ""), sent("libb.so", "bb"))
	for _, c := range []struct {
		file int
		data string
		lz4  bool
	}{{0, "pro", false}, {0, "\x40gram", true}, {2, "bb", false}} {
		if err := r.Write(step.SentPiece{File: c.file, Data: []byte(c.data), LZ4: c.lz4}); err != nil {
			t.Fatal(err)
		}
	}
	<-r.Done()
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "prog.7"), &st); err != nil || st.Uid != testUID || st.Mode&0o7777 != 0o755 {
		t.Errorf("the program: uid %d, mode %o, %v", st.Uid, st.Mode, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "prog.7_libs", "libb.so")); string(b) != "bb" {
		t.Errorf("the library: %q, %v", b, err)
	}
	if err := r.Write(step.SentPiece{Data: []byte("x")}); !errors.Is(err, errOver) {
		t.Errorf("after the end: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func TestRootReceiveRefused(t *testing.T) {
	testkit.RequireRoot(t)
	for name, c := range map[string]struct {
		file step.SentFile
		data string
		n    int
		lz4  bool
		want string
	}{
		"another digest": {sent("p", "abc"), "abd", 0, false, "SHA-256"},
		"too much":       {sent("p", "abc"), "abcd", 0, false, `cannot receive "p": 4 bytes came, and it wants 3`},
		"another file":   {sent("p", "abc"), "abc", 1, false, `cannot receive file 2 of 1: it is "p" that wants 3 bytes`},
		"no block":       {sent("p", "abc"), "abc", 0, true, `cannot receive "p": 3 compressed bytes: it is no LZ4 block`},
		"a bomb":         {sent("p", "abc"), "\x1fa\x01\x00" + strings.Repeat("\xff", 4000) + "\x00\x10a", 0, true, "it is no LZ4 block"},
		"too much in it": {sent("p", "abc"), "\x40abcd", 0, true, `4 bytes came, and it wants 3`},
		"not the user's": {sent("/etc/stepd-bcast-test", "abc"), "", 0, false, "permission denied"},
		"no directory":   {sent("/no/such/p", "abc"), "", 0, false, "no such file"},
	} {
		dir := userDir(t)
		r := receiver(dir, c.file)
		if c.data != "" {
			if err := r.Write(step.SentPiece{File: c.n, Data: []byte(c.data), LZ4: c.lz4}); err == nil {
				t.Errorf("%s: it was taken", name)
			}
		}
		<-r.Done()
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := r.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
}

// TestRootReceiveLinks: a link of another's is replaced or refused, never followed.
func TestRootReceiveLinks(t *testing.T) {
	testkit.RequireRoot(t)
	dir, other := userDir(t), userDir(t)
	if err := os.WriteFile(filepath.Join(other, "kept"), []byte("kept"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(filepath.Join(other, "kept"), filepath.Join(dir, "p")), os.Symlink(other, filepath.Join(dir, "p_libs"))); err != nil {
		t.Fatal(err)
	}
	r := receiver(dir, sent("p", "new"), sent("lib.so", "lib"))
	_ = r.Write(step.SentPiece{Data: []byte("new")}) // the library's directory fails with it
	<-r.Done()
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "it is no directory of uid") {
		t.Errorf("a link for a directory: %v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(filepath.Join(other, "kept")); string(b) != "kept" {
		t.Errorf("what the link names is now %q", b)
	}
	if st, err := os.Lstat(filepath.Join(dir, "p")); err != nil || !st.Mode().IsRegular() || st.Size() != int64(len("new")) {
		t.Errorf("in the link's place: %v, %v", st, err)
	}
	if left, _ := os.ReadDir(other); len(left) != 1 {
		t.Errorf("beyond the link: %v", left)
	}
}
