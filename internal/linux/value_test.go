package linux

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestValue: what kernels write, and what they leave out.
func TestValue(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for _, c := range []struct{ text, key, want string }{
		{"low 0\nhigh 2\noom_group_kill 1\noom_kill 2\n", "oom_kill", "2"},
		{"oom_kill_disable 0\nunder_oom 0\n", "oom_kill", ""}, // a kernel without the counter
		{"Name:\tUid: 5\nUid:\t7001\t0\t0\t0\n", "Uid", "7001\t0\t0\t0"},
		{"MemTotal:       16384 kB\n", "MemTotal", "16384 kB"},
		{"Uid\n", "Uid", ""},
		{"Uid", "Uid", ""},
		{"", "Uid", ""},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Value(path, c.key); got != c.want || err != nil {
			t.Errorf("%s of %q: %q, %v", c.key, c.text, got, err)
		}
	}
	if _, err := Value(path+".none", "Uid"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// FuzzValue: no text makes it fail, and a value is of one line.
func FuzzValue(f *testing.F) {
	f.Add("oom_kill 2\n", "oom_kill")
	f.Add("Uid:", "Uid")
	f.Add("\n : \n", "")
	f.Fuzz(func(t *testing.T, text, key string) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Value(path, key); err != nil || strings.Contains(got, "\n") {
			t.Errorf("%q of %q: %q, %v", key, text, got, err)
		}
	})
}
