package proctrack

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
)

// testMount finds a v2 mount as noded would, without package detect (which
// imports this one).
func testMount(t testing.TB) string {
	t.Helper()
	testkit.RequireRoot(t)
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	t.Fatal("no cgroup v2 mount at /sys/fs/cgroup or /sys/fs/cgroup/unified")
	return ""
}

// testRoot is a root of this test's own, gone when the test ends.
func testRoot(t testing.TB) *Root {
	t.Helper()
	r, err := NewRoot(RootConfig{Parent: testMount(t), Spool: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Ensure(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ids, err := r.Steps()
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			t.Errorf("the test left step %s", id)
			if err := r.KillStep(shortly(t), id); err != nil {
				t.Error(err)
			}
		}
		if err := r.Remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(r.Dir()); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", r.Dir(), err)
		}
	})
	return r
}

// testStep is the tracker of a step of its own, killed and removed at the end.
func testStep(t testing.TB) (*Root, step.ID, *Cgroup) {
	t.Helper()
	r, id := testRoot(t), step.ID{Job: 7, Step: 3}
	place, err := r.MakeStep(id, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.KillStep(context.Background(), id); err != nil {
			t.Error(err)
		}
	})
	c := NewCgroup(CgroupConfig{Dir: place.Dir, Tasks: place.Tasks})
	if err := c.Create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Destroy(shortly(t)); err != nil {
			t.Error(err)
		}
	})
	return r, id, c
}

// shortly ends long after any correct kill and before the test's own timeout.
func shortly(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// spawnIn starts a shell script that is born in the tracker's cgroup, and
// waits until it has printed the line "ready".
func spawnIn(t testing.TB, c *Cgroup, script string, args ...string) *exec.Cmd {
	t.Helper()
	fd, ok := c.HostCgroup()
	if !ok {
		t.Fatal("no directory for CLONE_INTO_CGROUP")
	}
	return spawn(t, &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}, script, args...)
}

func spawn(t testing.TB, attr *syscall.SysProcAttr, script string, args ...string) *exec.Cmd {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.SysProcAttr = attr
	// A file, not a pipe of os/exec: Wait must not wait for orphans' ends of it.
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	err = cmd.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	line := make([]byte, 16)
	n, err := r.Read(line)
	if err != nil || !strings.HasPrefix(string(line[:n]), "ready") {
		t.Fatalf("the script said %q (%v), want \"ready\"", line[:n], err)
	}
	return cmd
}

// countFDs counts this process's descriptors.
func countFDs(t testing.TB) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// countDirs counts the cgroups below dir, dir included.
func countDirs(t testing.TB, dir string) int {
	t.Helper()
	n := 0
	err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
