package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"stepd/internal/testkit"
	"stepd/step"
)

// testUser needs no passwd entry: only numbers are used.
var testUser = step.User{Name: "u7001", UID: 7001, GID: 7001, Groups: []uint32{7001}}

const tagOfTests = "00c0ffee"

// fixture is one noded's place on the disk. It lies in /var/tmp and not in
// /tmp, which the containers cover.
type fixture struct {
	t   *testing.T
	top string
	cfg Config
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	testkit.RequireRoot(t)
	top, err := os.MkdirTemp("/var/tmp", "jobcontainer-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(top, 0o755); err != nil { // users go through it
		t.Fatal(err)
	}
	f := &fixture{t: t, top: top, cfg: configIn(top)}
	t.Cleanup(func() {
		f.wantNoMounts()
		f.unmount() // after a failure
		if err := os.RemoveAll(top); err != nil {
			t.Error(err)
		}
	})
	return f
}

func configIn(top string) Config {
	return Config{
		BasePath: top + "/base", AutoBasePath: true,
		RunDir: top + "/run/jobs", NodeTag: tagOfTests, NodeName: "testnode",
	}
}

// plugin returns a restored plugin that the test's end takes down.
func (f *fixture) plugin(running ...uint32) *Tmpfs {
	f.t.Helper()
	c, err := NewTmpfs(f.cfg)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := c.Restore(f.t.Context(), running); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		for _, job := range c.known() {
			if err := c.Delete(context.Background(), job); err != nil {
				f.t.Errorf("cannot clean up: %v", err)
			}
		}
	})
	return c
}

func (t *Tmpfs) known() []uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var jobs []uint32
	for job := range t.jobs {
		jobs = append(jobs, job)
	}
	return jobs
}

func (f *fixture) create(c *Tmpfs, job uint32) {
	f.t.Helper()
	if err := c.Create(f.t.Context(), job, testUser); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) remove(c *Tmpfs, job uint32) {
	f.t.Helper()
	if err := c.Delete(f.t.Context(), job); err != nil {
		f.t.Fatal(err)
	}
}

// wantNoMounts checks that the host has no mount of the fixture's.
func (f *fixture) wantNoMounts() {
	f.t.Helper()
	if m := mountsWith(f.t, f.top); len(m) > 0 {
		f.t.Errorf("still mounted:\n%s", strings.Join(m, "\n"))
	}
}

// unmount detaches whatever is mounted in the fixture's place, the last first.
func (f *fixture) unmount() {
	f.t.Helper()
	for _, m := range slices.Backward(mountsWith(f.t, f.top+"/")) {
		syscall.Unmount(strings.Fields(m)[4], syscall.MNT_DETACH)
	}
}

// wantNothing checks that no job left anything: no mount and no directory.
func (f *fixture) wantNothing() {
	f.t.Helper()
	f.wantNoMounts()
	for _, dir := range []string{f.cfg.RunDir, f.cfg.BasePath} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			f.t.Error(err)
		}
		for _, e := range entries {
			f.t.Errorf("left behind: %s/%s", dir, e.Name())
		}
	}
}

// private is the host's path of the job's private /tmp.
func (f *fixture) private(job uint32) string {
	return filepath.Join(f.cfg.BasePath, tagOfTests, jobName(job), "0-tmp")
}

func mountsWith(t *testing.T, text string) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, text) {
			found = append(found, strings.TrimSuffix(line, "\n"))
		}
	}
	return found
}

// command is a shell in the job's namespace, as a task would be: joined by
// setns(2) in a process with one thread.
func (f *fixture) command(c *Tmpfs, job uint32, script string, args ...string) *exec.Cmd {
	f.t.Helper()
	ns, err := c.Join(job)
	if err != nil || ns.Mount == nil {
		f.t.Fatalf("job %d has no namespace: %v", job, err)
	}
	f.t.Cleanup(ns.Close)
	argv := append([]string{"--mount=/proc/self/fd/3"}, args...)
	cmd := exec.Command("nsenter", append(argv, "sh", "-c", script)...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{ns.Mount}
	return cmd
}

func asUser(uid uint32) []string {
	id := fmt.Sprint(uid)
	return []string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups"}
}

// user runs a script in the job as its user, root as root.
func (f *fixture) user(c *Tmpfs, job uint32, script string) string {
	f.t.Helper()
	return f.output(f.command(c, job, script, asUser(testUser.UID)...))
}

func (f *fixture) root(c *Tmpfs, job uint32, script string) string {
	f.t.Helper()
	return f.output(f.command(c, job, script))
}

func (f *fixture) output(cmd *exec.Cmd) string {
	f.t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		f.t.Fatalf("%v: %v: %s", cmd.Args, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// script writes an InitScript and configures it.
func (f *fixture) script(body string) {
	f.t.Helper()
	p := f.top + "/init.sh"
	if err := os.WriteFile(p, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		f.t.Fatal(err)
	}
	f.cfg.InitScript = p
}

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}

// killVar names the place where a copy of this test binary is to be killed.
const killVar = "JOBCONTAINER_TEST_KILL"

func TestMain(m *testing.M) {
	if at := os.Getenv(killVar); at != "" {
		killedAt(at, os.Args[len(os.Args)-1])
	}
	os.Exit(m.Run())
}

// killedAt plays a noded that is killed outright at one point of the work on
// job 1: "create:POINT" or "delete:POINT". Job 2 runs.
func killedAt(at, top string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(3)
		}
	}
	cfg := configIn(top)
	at, linux := strings.CutPrefix(at, "linux,")
	if linux {
		var err error
		cfg, err = linuxIn(cfg)
		fail(err)
	}
	verb, point, _ := strings.Cut(at, ":")
	cfg.InitScript = top + "/init.sh"
	c, err := NewTmpfs(cfg)
	fail(err)
	ctx := context.Background()
	fail(c.Restore(ctx, nil))
	fail(c.Create(ctx, 2, testUser))
	if verb == "delete" {
		fail(c.Create(ctx, 1, testUser))
	}
	c.hook = func(p string) error {
		if p == point {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // the signal is on its way
		}
		return nil
	}
	if verb == "delete" {
		fail(c.Delete(ctx, 1))
	} else {
		fail(c.Create(ctx, 1, testUser))
	}
	fail(fmt.Errorf("never came to %q", at))
}
