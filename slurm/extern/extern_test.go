package extern

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"stepd/proctrack"
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
