package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// TestRootCheck: what the check of a bundle says is one line of bounded length, whatever its process
// has been made to do by its user, and a process that it has left holds up nothing.
func TestRootCheck(t *testing.T) {
	testkit.RequireRoot(t)
	program := filepath.Join(t.TempDir(), "program")
	script := "#!/bin/sh\nsleep 600 &\necho $! > $3/pid\nprintf 'x: error: a\\nb'; head -c 100000 /dev/zero | tr '\\0' x\nexit 2\n"
	script = strings.ReplaceAll(script, "\nprintf", "\nexec >&2\nprintf")
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &Step{Dir: t.TempDir()}
	began := time.Now()
	err := s.Check(t.Context(), program, 0, nil)
	if took := time.Since(began); took > 5*time.Minute {
		t.Errorf("it took %v", took)
	}
	check, ok := errors.AsType[*CheckError](err)
	if !ok || !errors.Is(err, syscall.ENOENT) || !strings.HasPrefix(check.Text, "a?b") || len(check.Text) > 2*whyMax {
		t.Errorf("%v", err)
	}
	if text, err := os.ReadFile(filepath.Join(s.Dir, "pid")); err != nil || len(text) == 0 {
		t.Errorf("%q %v", text, err)
	} else if err := syscall.Kill(atoi(t, string(text)), syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

func atoi(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
