package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/internal/testkit"
	"stepd/proctrack"
	"stepd/proctrack/detect"
	"stepd/site"
	"stepd/step"
)

const rootTimeout = 20 * time.Second

// private is a real noded whose stepd is played by this test's own binary.
type private struct {
	t      *testing.T
	bin    string
	dir    string
	cmd    *exec.Cmd
	client *api.Client

	mu  sync.Mutex
	log bytes.Buffer // guarded by mu
	// ready is closed when the log says so.
	ready chan struct{}
}

func (d *private) Write(b []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log.Write(b)
	if strings.Contains(d.log.String(), "noded: ready") {
		select {
		case <-d.ready:
		default:
			close(d.ready)
		}
	}
	return len(b), nil
}

// newPrivate builds noded and gives it played programs.
func newPrivate(t *testing.T) *private {
	t.Helper()
	d := builtNoded(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Dir(d.bin)
	if out, err := exec.Command("cp", self, bin+"/stepd").CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	script := "#!/bin/sh\nread what n\necho uid=$n\necho gid=$n\necho name=u$n\n"
	if err := os.WriteFile(bin+"/spankhost", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, d.path("slurm.conf"), "NodeName=n CPUs=4\n")
	d.start()
	return d
}

// newReal gives noded the programs that make has built, and the site's files.
func newReal(t *testing.T, files map[string]string) *private {
	t.Helper()
	d := builtNoded(t)
	dir := os.Getenv("STEPD_BIN")
	if dir == "" {
		dir = "../../bin"
	}
	for _, name := range []string{"stepd", "spankhost"} {
		if out, err := exec.Command("cp", filepath.Join(dir, name), filepath.Dir(d.bin)).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: run make first\n%s", err, out)
		}
	}
	write(t, d.path("slurm.conf"), "NodeName=n CPUs=4\n"+files["slurm.conf"])
	for name, text := range files {
		if name != "slurm.conf" {
			write(t, d.path(name), text)
		}
	}
	d.start()
	return d
}

// builtNoded builds noded into a directory of its own, and starts nothing.
func builtNoded(t *testing.T) *private {
	t.Helper()
	testkit.RequireRoot(t)
	d := &private{t: t, dir: t.TempDir()}
	for _, dir := range []string{d.dir, filepath.Dir(d.dir)} {
		if err := os.Chmod(dir, 0o755); err != nil { // users must reach the programs
			t.Fatal(err)
		}
	}
	bin := filepath.Join(d.dir, "bin")
	if out, err := exec.Command("go", "build", "-o", bin+"/noded", ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	d.bin = bin + "/noded"
	t.Cleanup(func() {
		// Whichever start was the last, and however the test has ended.
		if d.cmd != nil && d.cmd.ProcessState == nil {
			d.end(syscall.SIGTERM)
		}
		if t.Failed() {
			d.mu.Lock()
			defer d.mu.Unlock()
			t.Logf("noded's log:\n%s", &d.log)
		}
	})
	return d
}

func (d *private) path(name string) string { return filepath.Join(d.dir, name) }

func (d *private) args() []string {
	return []string{"-f", d.path("slurm.conf"), "--run-dir", d.path("run"), "--spool-dir", d.path("spool"), "-v"}
}

func (d *private) start() {
	d.t.Helper()
	d.ready = make(chan struct{})
	d.mu.Lock()
	d.log.Reset()
	d.mu.Unlock()
	d.cmd = exec.Command(d.bin, d.args()...)
	d.cmd.Stdout, d.cmd.Stderr = d, d
	// stepds inherit the log: waiting for its end would be waiting for them.
	d.cmd.WaitDelay = 100 * time.Millisecond
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	select {
	case <-d.ready:
	case <-time.After(rootTimeout):
		d.t.Fatal("noded is not ready")
	}
	d.client = &api.Client{Socket: d.path("run/noded.sock")}
}

// end sends sig to noded and returns its exit code.
func (d *private) end(sig syscall.Signal) int {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
	_ = d.cmd.Wait() // its error is the exit code, or the open log
	return d.cmd.ProcessState.ExitCode()
}

func (d *private) run(argv ...string) step.ID {
	d.t.Helper()
	null := step.Stream{Kind: step.StreamNull}
	req := &step.Request{Schema: 1, Name: "t", NTasks: 1, NNodes: 1, CPUsPerTask: 1, Argv: argv, Cwd: "/", Stdin: null, Stdout: null, Stderr: null}
	reply, err := d.client.Run(d.t.Context(), &api.RunRequest{Request: req})
	if err != nil {
		d.t.Fatalf("Run: %v", err)
	}
	return step.ID{Job: reply.JobID, Step: reply.StepID}
}

func (d *private) record(recs []*step.Record, err error) step.Record {
	d.t.Helper()
	if err != nil || len(recs) != 1 {
		d.t.Fatalf("%d records, %v", len(recs), err)
	}
	return *recs[0]
}

func (d *private) wait(id step.ID) step.Record {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), rootTimeout)
	defer cancel()
	return d.record(d.client.Wait(ctx, api.Ref(id)))
}

// running waits until the step runs: then its child exists too.
func (d *private) running(id step.ID) step.Record {
	d.t.Helper()
	deadline := time.Now().Add(rootTimeout)
	for {
		rec := d.record(d.client.Show(d.t.Context(), api.Ref(id)))
		if rec.State == step.Running {
			return rec
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("step %s is %s", id, rec.State)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// root is where this noded's cgroups are, "" where it has none.
func (d *private) root() string {
	d.t.Helper()
	a, err := detect.Detect(detect.Wish{})
	if err != nil {
		d.t.Fatal(err)
	}
	if a.Parent == "" {
		return ""
	}
	name, err := proctrack.RootName(d.path("spool"))
	if err != nil {
		d.t.Fatal(err)
	}
	return filepath.Join(a.Parent, name)
}

// nothingLeft: no process, cgroup or socket of the step.
func (d *private) nothingLeft(rec step.Record) {
	d.t.Helper()
	for _, task := range rec.Tasks {
		if task.PID == nil {
			continue
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", *task.PID))
		if err == nil && !strings.Contains(string(b), ") Z ") {
			d.t.Errorf("process %d is left: %s", *task.PID, b)
		}
	}
	for _, path := range []string{rec.Cgroup, d.path("run/steps/" + rec.ID.Key() + ".sock"), d.path("spool/results/" + rec.ID.Key())} {
		if _, err := os.Lstat(path); path != "" && err == nil {
			d.t.Errorf("%s is left", path)
		}
	}
}

// TestRootStep: stepd is born in its cgroup and leads a session; nothing is
// left of a step, and nothing at all after SIGTERM.
func TestRootStep(t *testing.T) {
	d := newPrivate(t)
	id := d.run("wait")
	rec := d.running(id)
	if root := d.root(); root != "" {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", rec.StepdPID))
		if err != nil || !strings.Contains(string(b), fmt.Sprintf("%s/job_%d/step_%d/stepd\n", filepath.Base(root), id.Job, id.Step)) {
			t.Errorf("stepd's cgroup: %s, %v", b, err)
		}
	}
	if sid, err := unix.Getsid(rec.StepdPID); err != nil || sid != rec.StepdPID {
		t.Errorf("stepd's session: %d, %v", sid, err)
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", rec.StepdPID))
	if err != nil {
		t.Fatal(err)
	}
	got, own := strings.Split(strings.Trim(string(env), "\x00"), "\x00"), os.Environ()
	for _, v := range got {
		if name, _, _ := strings.Cut(v, "="); name != "SLURM_CONF" && name != "SLURMD_NODENAME" && name != "GOMAXPROCS" && !slices.Contains(own, v) {
			t.Errorf("stepd's environment has %q, which noded's has not", v)
		}
	}
	if _, err := d.client.Cancel(t.Context(), &api.CancelRequest{StepRef: api.StepRef{JobID: id.Job}}); err != nil {
		t.Error(err)
	}
	if rec := d.wait(id); rec.State != step.Cancelled {
		t.Errorf("record %+v", rec)
	}
	d.nothingLeft(rec)
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if root := d.root(); root != "" {
		if _, err := os.Lstat(root); err == nil {
			t.Errorf("%s is left", root)
		}
	}
	if _, err := os.Lstat(d.path("run/noded.sock")); err == nil {
		t.Error("the socket is left")
	}
}

// TestRootKillStepd: its child in the cgroup goes with it.
func TestRootKillStepd(t *testing.T) {
	d := newPrivate(t)
	defer d.end(syscall.SIGTERM)
	rec := d.running(d.run("wait"))
	if err := syscall.Kill(rec.StepdPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	final := d.wait(rec.ID)
	want := fmt.Sprintf("stepd (pid %d) was killed by SIGKILL", rec.StepdPID)
	if final.State != step.Failed || final.Reason != want || final.ExitCode == nil || *final.ExitCode != 1 {
		t.Errorf("record %+v", final)
	}
	d.nothingLeft(rec)
}

// TestRootKillNoded: steps go on, are found again, and their results too.
func TestRootKillNoded(t *testing.T) {
	d := newPrivate(t)
	fifo := func(name string) string {
		if err := unix.Mkfifo(d.path(name), 0o600); err != nil {
			t.Fatal(err)
		}
		return d.path(name)
	}
	a, b := d.running(d.run("fifo", fifo("a"))), d.running(d.run("fifo", fifo("b")))
	dead := d.running(d.run("wait"))
	d.end(syscall.SIGKILL)
	if err := os.WriteFile(d.path("b"), []byte("8"), 0); err != nil { // while no noded runs
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(b.StepdPID, 0)
	if err == nil {
		fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(rootTimeout/time.Millisecond)); n != 1 {
			t.Fatalf("stepd of step %s does not end: %v", b.ID, err)
		}
		unix.Close(pidfd)
	}
	if err := syscall.Kill(dead.StepdPID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.start()
	if rec := d.wait(b.ID); rec.ExitCode == nil || *rec.ExitCode != 8 {
		t.Errorf("the result that stepd left: %+v", rec)
	}
	d.nothingLeft(b)
	if rec := d.wait(dead.ID); rec.State != step.Failed || rec.Reason != fmt.Sprintf("stepd (pid %d) is gone", dead.StepdPID) {
		t.Errorf("the dead: %+v", rec)
	}
	d.nothingLeft(dead)
	if rec := d.running(a.ID); rec.StepdPID != a.StepdPID {
		t.Errorf("adopted: %+v", rec)
	}
	if err := os.WriteFile(d.path("a"), []byte("7"), 0); err != nil {
		t.Fatal(err)
	}
	if rec := d.wait(a.ID); rec.ExitCode == nil || *rec.ExitCode != 7 {
		t.Errorf("the adopted: %+v", rec)
	}
	d.nothingLeft(a)
	if id := d.run("exit", "0"); id.Job != dead.Job+1 {
		t.Errorf("job %d after job %d", id.Job, dead.Job)
	} else {
		d.wait(id)
	}
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// TestRootTermLeavesSteps: SIGTERM with a step: exit 0, and the step goes on.
func TestRootTermLeavesSteps(t *testing.T) {
	d := newPrivate(t)
	rec := d.running(d.run("wait"))
	if code := d.end(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if err := syscall.Kill(rec.StepdPID, 0); err != nil {
		t.Errorf("stepd: %v", err)
	}
	d.start()
	d.running(rec.ID)
	if _, err := d.client.Cancel(t.Context(), &api.CancelRequest{StepRef: api.StepRef{JobID: rec.Job}}); err != nil {
		t.Error(err)
	}
	d.wait(rec.ID)
	d.nothingLeft(rec)
	d.end(syscall.SIGTERM)
}

// TestRootRefusesToStart: what noded exits 1 for, and what with a code of its own.
func TestRootRefusesToStart(t *testing.T) {
	d := newPrivate(t)
	defer d.end(syscall.SIGTERM)
	wrong := write(t, filepath.Join(t.TempDir(), "slurm.conf"), "nonsense\n")
	for _, tc := range []struct {
		name, says string
		attr       *syscall.SysProcAttr
		args       []string
		code       int
	}{
		{"the same spool", fmt.Sprintf("noded (pid %d)", d.cmd.Process.Pid), nil, d.args(), 1},
		{"not root", "needs root", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}, d.args(), 1},
		{"no such file", "absent.conf", nil, []string{"-f", d.path("absent.conf")}, 1},
		{"a mistake", "slurm.conf:1", nil, []string{"-f", wrong}, site.MistakenExit},
		{"a mistake that is looked for", "1 mistake in the configuration", nil, []string{"-f", wrong, "--check-config"}, site.MistakenExit},
		{"an unknown option", "noded: unknown option --nonsense: see noded --help\n", nil, []string{"--nonsense"}, 1},
		{"a misspelt option", "noded: unknown option --run-di: did you mean --run-dir?\n", nil, []string{"--run-di"}, 1},
		{"an option without its value", "noded: option -f needs a value: see noded --help\n", nil, []string{"-f"}, 1},
		{"an argument", "noded: \"now\" is one argument too many: noded [-f FILE]", nil, []string{"now"}, 1},
		{"an unknown format", "xml", nil, append(d.args(), "--log-format", "xml"), 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cmd := exec.Command(d.bin, tc.args...)
			cmd.SysProcAttr = tc.attr
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != tc.code || !strings.Contains(string(out), tc.says) || !strings.Contains(string(out), "noded: ") {
				t.Errorf("%v, %s; want exit code %d and %q", err, out, tc.code, tc.says)
			}
		})
	}
}
