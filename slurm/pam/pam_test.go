package pam

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step/launch"
)

// TestProtocol: both halves say the same.
func TestProtocol(t *testing.T) {
	header, err := os.ReadFile("program/pamhost.h")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"FD_LIFE": fdLife, "FD_ANSWER": fdAnswer, "LIMITS": limitsOf, "TEXT": textMax} {
		m := regexp.MustCompile(`#define PAMHOST_` + name + `\s+(\d+)`).FindSubmatch(header)
		if m == nil || string(m[1]) != strconv.Itoa(want) {
			t.Errorf("PAMHOST_%s is %s in C, and %d in Go", name, m, want)
		}
	}
	if got := binary.Size(answer{}); got != 16+2*limitsOf*16+textMax {
		t.Errorf("an answer has %d bytes", got)
	}
}

// built is pamhost, which finds the libpam of its tests.
func built(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{
		{"-o", filepath.Join(dir, "pamhost"), "program/main.c", "-ldl"},
		{"-fPIC", "-shared", "-o", filepath.Join(dir, "libpam.so.0"), "program/tests/fakepam.c"},
	} {
		if out, err := exec.Command("cc", append([]string{"-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("cc: %v\n%s", err, out)
		}
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
	return filepath.Join(dir, "pamhost")
}

// TestRootSession: what the session has changed reaches the tasks, and it is closed.
func TestRootSession(t *testing.T) {
	testkit.RequireRoot(t)
	s := New(Config{
		Program: built(t), User: "alice", GID: 7, Groups: []uint32{7, 8}, Node: "n1",
		Env: []string{"SLURM_RLIMIT_CORE=3", "SLURM_RLIMIT_NOFILE=150"},
	})
	if err := s.PreSetuid(); err != nil {
		t.Fatal(err)
	}
	host, err := unix.Dup(s.pidfd)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(host)
	for _, tc := range []struct {
		env  []string
		want string
	}{{s.cfg.Env, "SLURM_RLIMIT_NOFILE=150:200"}, {nil, "SLURM_RLIMIT_NOFILE=100:200"}} {
		var l launch.Launch
		s.cfg.Env = tc.env
		if err := s.PreLaunch(&l); err != nil || !slices.Equal(l.CommonEnv, []string{tc.want}) {
			t.Errorf("with %q the tasks have %q, %v; want %s", tc.env, l.CommonEnv, err, tc.want)
		}
	}
	task := exec.Command("sleep", "100")
	if err := task.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = task.Process.Kill(); _ = task.Wait() }()
	// As of a session that has changed what tasks do not set themselves.
	s.opened.After[unix.RLIMIT_MSGQUEUE] = limit{10, 20}
	if err := s.PreLaunchPriv(0, task.Process.Pid); err != nil {
		t.Fatal(err)
	}
	var got unix.Rlimit
	if err := unix.Prlimit(task.Process.Pid, unix.RLIMIT_MSGQUEUE, nil, &got); err != nil || got != (unix.Rlimit{Cur: 10, Max: 20}) {
		t.Errorf("the task has %v, %v", got, err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", task.Process.Pid))
	if fields := strings.Fields(string(stat)); err != nil || fields[18] != strconv.Itoa(int(s.opened.Nice[1])) {
		t.Errorf("the task's nice value: %s, %v; want %d", stat, err, s.opened.Nice[1])
	}
	if err := s.PreLaunchPriv(0, 1<<22+1); err != nil {
		t.Errorf("a task that has ended: %v", err)
	}
	if s.Refused() {
		t.Error("it counts as refused")
	}
	if err := s.PostStep(); err != nil {
		t.Error(err)
	}
	ended := []unix.PollFd{{Fd: int32(host), Events: unix.POLLIN}}
	if n, err := unix.Poll(ended, 0); n != 1 || err != nil {
		t.Errorf("pamhost lives on: %d, %v", n, err)
	}
	if err := s.PostStep(); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// TestRootBadModules: modules that refuse, crash or hang, at the opening and at the close.
func TestRootBadModules(t *testing.T) {
	testkit.RequireRoot(t)
	program := built(t)
	for user, want := range map[string]string{
		"deny":  `cannot open a PAM session for "deny": pam_open_session: error 14 (pam.d/slurm)`,
		"crash": `cannot open a PAM session for "crash": pamhost has died: a module of pam.d/slurm has crashed, or it was killed`,
		"hang":  `cannot open a PAM session for "hang": a module of pam.d/slurm has not returned within 300ms`,
	} {
		s := New(Config{Program: program, User: user, Node: "n1"})
		if user == "hang" {
			s.wait = 300 * time.Millisecond
		}
		if err := s.PreSetuid(); err == nil || err.Error() != want || !s.Refused() {
			t.Errorf("%s: %v, want %s", user, err, want)
		}
		if err := s.PostStep(); err != nil { // it is called after a failure as well
			t.Errorf("%s: %v", user, err)
		}
	}
	s := New(Config{Program: program, User: "stay", Node: "n1"})
	if err := s.PreSetuid(); err != nil {
		t.Fatal(err)
	}
	if err := s.PostStep(); err == nil || !strings.Contains(err.Error(), "pam_close_session: error 14") {
		t.Errorf("a close that fails: %v", err)
	}
	s = New(Config{Program: program, User: "alice", Node: "n1"})
	if err := s.PreSetuid(); err != nil {
		t.Fatal(err)
	}
	if err := unix.PidfdSendSignal(s.pidfd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	if err := s.PostStep(); err == nil || !strings.Contains(err.Error(), "pamhost has died") {
		t.Errorf("a pamhost that was killed: %v", err)
	}
	s = New(Config{Program: "/nonexistent", User: "alice", Node: "n1"})
	if err := s.PreSetuid(); err == nil || !strings.Contains(err.Error(), `cannot start "/nonexistent"`) {
		t.Errorf("no pamhost: %v", err)
	}
}
