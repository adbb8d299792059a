package scripts

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/step"
)

// TestWriteBatch: nothing of a user's is followed, and nothing is left open.
func TestWriteBatch(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(dir, "7")); err != nil {
		t.Fatal(err)
	}
	me := step.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if err := WriteBatch(dir, "7", []byte("text"), me); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "keep" {
		t.Errorf("the link was followed: %q, %v", b, err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "7")); err != nil || string(b) != "text" {
		t.Errorf("script %q, %v", b, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "8"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteBatch(dir, "8", nil, me); err == nil {
		t.Error("a directory was replaced")
	}
}

// What a user sends to prolog and epilog never makes them fail to start.
func TestPassable(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	env := []string{"SLURM_JOB_ID=1"}
	for i := range 40 {
		env = append(env, fmt.Sprintf("SPANK_V%d=%s", i, strings.Repeat("x", 110<<10)))
	}
	env = append(env, "SPANK_LONG="+strings.Repeat("x", 128<<10), "SLURM_LAST=1")
	got := passable(env, logrus.NewEntry(log))
	size := 0
	for _, e := range got {
		size += len(e)
	}
	if size > userEnvMax+100 || len(got) != 2+9 || got[0] != env[0] || got[len(got)-1] != "SLURM_LAST=1" {
		t.Errorf("%d variables of %d bytes are left", len(got), size)
	}
}

// TestWriteBatchForks: no fork waits for a script that is written, and the script for those
// that may have it open.
func TestWriteBatchForks(t *testing.T) {
	dir := t.TempDir()
	me := step.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	done := make(chan error, 1)
	syscall.ForkLock.Lock() // a fork is under way
	forked := false
	fork := func() {
		if !forked {
			syscall.ForkLock.Unlock()
		}
		forked = true
	}
	defer fork()
	go func() { done <- WriteBatch(dir, "7", []byte("text"), me) }()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if b, err := os.ReadFile(filepath.Join(dir, "7")); err == nil && string(b) == "text" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is written under the lock")
		}
	}
	select {
	case err := <-done:
		t.Errorf("it has not waited for the fork: %v", err)
	default:
	}
	fork()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestPrologGlob: patterns in order, each by name; no match is nothing.
func TestPrologGlob(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"10.sh", "9.sh", "2.sh"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s := Config{Prolog: []string{"/bin/b", dir + "/*.sh", dir + "/*.none", "/bin/a"}}
	got, err := s.paths(prolog())
	if want := []string{"/bin/b", dir + "/10.sh", dir + "/2.sh", dir + "/9.sh", "/bin/a"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
	s.Prolog = []string{"/bin/[a"}
	if _, err := s.paths(prolog()); err == nil {
		t.Error("a bad pattern")
	}
	s.Epilog, s.Prolog = []string{dir, "/no/such"}, nil
	if err := s.Check(); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("%v", err)
	}
}

// TestMoves: a prolog ends once, and nothing undoes its end.
func TestMoves(t *testing.T) {
	all := []state{waiting, running, passed, failed}
	legal := map[state][]state{waiting: {running, passed}, running: {passed, failed}}
	for _, from := range all {
		for _, to := range all {
			j := NewJob(7, "")
			j.state = from
			if err := j.moveLocked(to, nil); (err == nil) != slices.Contains(legal[from], to) {
				t.Errorf("from %s to %s: %v", from, to, err)
			}
		}
	}
}
