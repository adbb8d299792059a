package extern

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"stepd/internal/linux"
	"stepd/proctrack"
	"stepd/slurm/x11"
)

// TestAdoptRefuses: what is no process of a session's stays where it is, and why is told.
func TestAdoptRefuses(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	held := Start(Config{Cgroups: proctrack.StepCgroups{Tasks: t.TempDir()}, Log: func(string) {}})
	for _, tc := range []struct {
		step *Step
		pid  int
		want string
	}{
		{held, 0, "none of a session"}, {held, -1, "none of a session"}, {held, 1, "none of a session"}, {held, os.Getpid(), "none of a session"},
		{held, ended.Process.Pid, "no such process"},
		{held, os.Getppid(), "cgroup"}, // a folder that is none
		{Start(Config{Log: func(string) {}}), os.Getppid(), "no cgroups on this machine"},
	} {
		if err := tc.step.Adopt(tc.pid); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("process %d: %v, want %q", tc.pid, err, tc.want)
		}
	}
}

// TestDisplay: a job has its display, or goes without, and the log says so. What a killed daemon has
// left is found by the job's number.
func TestDisplay(t *testing.T) {
	var logged, failed []string
	config := func(dir string) Config {
		return Config{
			Job: 12, Notes: filepath.Join(t.TempDir(), "stepd"),
			Display: &x11.Config{Owner: linux.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}, Dir: dir, Cookie: "0011"},
			Log:     func(line string) { logged = append(logged, line) }, Error: func(line string) { failed = append(failed, line) },
		}
	}
	cfg := config(t.TempDir())
	s := Start(cfg)
	number, authority := s.Display()
	if st, err := os.Stat(authority); err != nil || st.Mode() != 0o600 || number == 0 || len(logged) != 1 || len(failed) != 0 {
		t.Errorf("display %d, %v, %v: %q, %q", number, st, err, logged, failed)
	}
	if err := Remove(cfg.Notes, 12); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(authority); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the key is left: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s = Start(config("/nonexistent"))
	if number, authority := s.Display(); number != 0 || authority != "" || len(failed) != 1 || !strings.HasPrefix(failed[0], "the job has no display: cannot forward X11: ") {
		t.Errorf("display %d, %q: %q", number, authority, failed)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
