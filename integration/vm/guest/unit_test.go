package guest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// soon is how long the tests wait for what the emulated host should have done
// in a moment.
const soon = 20 * time.Second

// startUnit starts noded.service, and at the test's end stops it and looks for
// what is left.
func startUnit(t *testing.T) {
	t.Helper()
	if !testkit.InGuest() {
		t.Skip("runs in the guest: make vm-test")
	}
	t.Cleanup(func() { stopUnit(t) })
	systemctl(t, "start", "noded")
}

// configure puts these files into /etc/stepd for the length of the test, which
// is to start the unit.
func configure(t *testing.T, files map[string]string) {
	t.Helper()
	startUnit(t)
	systemctl(t, "stop", "noded")
	t.Cleanup(func() { os.RemoveAll("/etc/stepd") }) // before stopUnit, which may start it again
	if err := os.MkdirAll("/etc/stepd", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile("/etc/stepd/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// stopUnit ends all steps and the unit. Nothing of either may stay.
func stopUnit(t *testing.T) {
	t.Helper()
	if property(t, "ActiveState") != "active" {
		_ = exec.Command("systemctl", "reset-failed", "noded").Run() // it need not have failed
		systemctl(t, "start", "noded")
	}
	for _, s := range steps(t) {
		_ = exec.Command("stepctl", "cancel", s.id()).Run() // it may just have ended
	}
	eventually(t, "the end of all steps", func() error {
		if left := steps(t); len(left) > 0 {
			return fmt.Errorf("%d are left: %+v", len(left), left)
		}
		return nil
	})
	systemctl(t, "stop", "noded")
	if state := property(t, "ActiveState"); state != "inactive" {
		t.Errorf("ActiveState after stop is %q", state)
	}
	eventually(t, "an empty host", func() error { return leftovers() })
	if t.Failed() {
		out, _ := exec.Command("journalctl", "-q", "-u", "noded", "-n", "60", "-o", "short-monotonic", "--no-pager").CombinedOutput()
		t.Logf("the unit's journal:\n%s", out)
	}
}

// leftovers names the processes, cgroups and mounts of steps that exist.
func leftovers() error {
	var left []string
	procs, _ := filepath.Glob("/proc/[0-9]*/comm") // the pattern is good
	for _, file := range procs {
		comm, err := os.ReadFile(file)
		name := strings.TrimSpace(string(comm))
		if err == nil && (name == "noded" || name == "stepd" || name == "spankhost" || name == "stepd-keeper") {
			left = append(left, "process "+filepath.Base(filepath.Dir(file))+" ("+name+")")
		}
	}
	for _, dir := range cgroups() {
		left = append(left, "cgroup "+dir)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), " /run/stepd") {
		left = append(left, fmt.Sprintf("mounts below /run/stepd (%v)", err))
	}
	for _, dir := range []string{"steps", "jobs"} {
		entries, _ := os.ReadDir("/run/stepd/" + dir) // it need not be there
		for _, e := range entries {
			left = append(left, "/run/stepd/"+dir+"/"+e.Name())
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return nil
}

// cgroups lists those that noded makes, wherever they are.
func cgroups() []string {
	var found []string
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		// The scope's may stay as long as the scope.
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "stepd-") && !strings.HasSuffix(d.Name(), ".scope") {
			found = append(found, path)
		}
		return nil // what goes away meanwhile is not left
	})
	return found
}

func systemctl(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.Command("systemctl", args...).CombinedOutput()
	if err != nil {
		journal, _ := exec.Command("journalctl", "-q", "-u", "noded", "-n", "20", "--no-pager").CombinedOutput()
		t.Fatalf("systemctl %q: %v\n%s%s", args, err, out, journal)
	}
	return strings.TrimSpace(string(out))
}

// property is one of noded.service, as `systemctl show` has it.
func property(t testing.TB, name string) string {
	t.Helper()
	return systemctl(t, "show", "-p", name, "--value", "noded")
}

func mainPID(t testing.TB) int {
	t.Helper()
	pid, err := strconv.Atoi(property(t, "MainPID"))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// eventually asks f again until it is content.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	for deadline := time.Now().Add(soon); ; time.Sleep(50 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, soon, err)
		}
	}
}

// doc is what the tests read of a step's document (design §7).
type doc struct {
	JobID  int    `json:"job_id"`
	StepID int    `json:"step_id"`
	Name   string `json:"name"`
	State  string `json:"state"`
	Reason string `json:"reason"`
	Tasks  []struct {
		Rank int  `json:"rank"`
		PID  *int `json:"pid"`
	} `json:"tasks"`
}

func (d doc) id() string { return fmt.Sprintf("%d.%d", d.JobID, d.StepID) }

func (d doc) pids(t testing.TB) []int {
	t.Helper()
	var pids []int
	for _, task := range d.Tasks {
		if task.PID == nil {
			t.Fatalf("step %s: task %d has no pid", d.id(), task.Rank)
		}
		pids = append(pids, *task.PID)
	}
	return pids
}

// steps is what `stepctl ps` shows.
func steps(t testing.TB, flags ...string) []doc {
	t.Helper()
	out, err := exec.Command("stepctl", append([]string{"ps", "--json"}, flags...)...).CombinedOutput()
	var answer struct {
		Steps []doc `json:"steps"`
	}
	if err = errors.Join(err, json.Unmarshal(out, &answer)); err != nil {
		t.Fatalf("stepctl ps: %v: %s", err, out)
	}
	return answer.Steps
}

// running is a step whose tasks wait for finish, and its client.
type running struct {
	doc
	fifo   *os.File
	out    strings.Builder // of the client; complete when it has ended
	client *exec.Cmd
	ended  chan struct{}
}

// startStep runs ntasks that wait, as the user `nobody`, and returns when
// all run.
func startStep(t *testing.T, name string, ntasks int, options ...string) *running {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "guest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	fifo := filepath.Join(dir, "fifo")
	if err := errors.Join(os.Chmod(dir, 0o755), syscall.Mkfifo(fifo, 0o600), os.Chmod(fifo, 0o644)); err != nil {
		t.Fatal(err)
	}
	s := &running{ended: make(chan struct{})}
	// For reading as well: no task waits for a writer to come.
	if s.fifo, err = os.OpenFile(fifo, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.fifo.Close() })
	args := append([]string{"run", "--uid=nobody", "-D", dir, "-O", "-Q", "-J", name, "-n", strconv.Itoa(ntasks)}, options...)
	// Each task ends with a line of its own.
	s.client = exec.Command("stepctl", append(args, "sh", "-c", "echo here; read x < "+fifo+"; exit $((7 + SLURM_PROCID))")...)
	s.client.Stdout, s.client.Stderr = &s.out, &s.out
	if err := s.client.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.client.Wait() // finish reads the code
		close(s.ended)
	}()
	eventually(t, "step "+name, func() error {
		select {
		case <-s.ended:
			t.Fatalf("step %s ended at its start: %v: %s", name, s.client.ProcessState, &s.out)
		default:
		}
		for _, d := range steps(t) {
			if d.Name == name && d.State == "RUNNING" {
				s.doc = d
				return nil
			}
		}
		return errors.New("it does not run")
	})
	return s
}

// finish lets the tasks end, and wants the exit code of the last rank.
func (s *running) finish(t *testing.T) {
	t.Helper()
	if _, err := s.fifo.WriteString(strings.Repeat("\n", len(s.Tasks))); err != nil {
		t.Error(err)
		return
	}
	want := 6 + len(s.Tasks)
	select {
	case <-s.ended:
		if code := s.client.ProcessState.ExitCode(); code != want {
			t.Errorf("step %s: exit code %d, want %d: %s", s.id(), code, want, &s.out)
		}
	case <-time.After(soon):
		t.Errorf("step %s: its client has not ended", s.id())
	}
}

// alive fails the test for each task that has ended.
func (s *running) alive(t *testing.T) {
	t.Helper()
	for _, pid := range s.pids(t) {
		if err := syscall.Kill(pid, 0); err != nil {
			t.Errorf("step %s: task with pid %d: %v", s.id(), pid, err)
		}
	}
}

// known fails the test unless noded shows the step with the tasks it had.
func (s *running) known(t *testing.T) {
	t.Helper()
	for _, d := range steps(t) {
		if d.id() != s.id() {
			continue
		}
		if d.State != "RUNNING" || fmt.Sprint(d.pids(t)) != fmt.Sprint(s.pids(t)) {
			t.Errorf("step %s: now %s with pids %v, before %v", s.id(), d.State, d.pids(t), s.pids(t))
		}
		return
	}
	t.Errorf("step %s is not in ps any more", s.id())
}
