package device

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
	"stepd/step"
)

// v2Mount finds the v2 tree.
func v2Mount(t *testing.T) string {
	t.Helper()
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir
		}
	}
	t.Fatal("there is no cgroup v2 tree")
	return ""
}

// Of nodes that are made for the test, a process in the cgroup may open all but
// those that are refused; and so may one in a cgroup below, whose own program
// refuses another one.
func TestRootDevicePrograms(t *testing.T) {
	testkit.RequireRoot(t)
	dir := t.TempDir()
	null, zero, full := mknod(t, dir, "null", unix.S_IFCHR, 1, 3), mknod(t, dir, "zero", unix.S_IFCHR, 1, 5), mknod(t, dir, "full", unix.S_IFCHR, 1, 7)
	loop := mknod(t, dir, "loop", unix.S_IFBLK, 7, 77)
	job := filepath.Join(v2Mount(t), fmt.Sprintf("stepd-test-device-%d", os.Getpid()))
	below := filepath.Join(job, "step")
	for _, d := range []string{job, below} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Rmdir(d); err != nil {
				t.Error(err)
			}
		})
	}
	if err := Attach(job, []step.Device{null, loop}); err != nil {
		t.Fatal(err)
	}
	if err := Attach(below, []step.Device{zero}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		cgroup string
		dev    step.Device
		may    bool
	}{
		{job, null, false}, {job, loop, false}, {job, zero, true}, {job, full, true},
		{below, null, false}, {below, loop, false}, {below, zero, false}, {below, full, true},
	} {
		out, err := inCgroup(t, c.cgroup, "exec 3<"+c.dev.Path)
		refused := strings.Contains(out, "not permitted")
		if c.may == refused || (c.may && err != nil) {
			t.Errorf("in %s: opening %s: %v %q, allowed is %v", filepath.Base(c.cgroup), c.dev.Path, err, out, c.may)
		}
	}
	// Another program in its place, not beside it.
	if err := Attach(below, []step.Device{full}); err != nil {
		t.Fatal(err)
	}
	if out, err := inCgroup(t, below, "exec 3<"+zero.Path); err != nil {
		t.Errorf("after another program: opening zero: %v %q", err, out)
	}
}

// TestRootAttachAtOnce: steps of a job that start at once refuse the job its devices at once.
func TestRootAttachAtOnce(t *testing.T) {
	testkit.RequireRoot(t)
	job := filepath.Join(v2Mount(t), fmt.Sprintf("stepd-test-device-once-%d", os.Getpid()))
	if err := os.Mkdir(job, 0o755); err != nil {
		t.Fatal(err)
	}
	defer unix.Rmdir(job)
	full := mknod(t, t.TempDir(), "full", unix.S_IFCHR, 1, 7)
	var steps sync.WaitGroup
	for range 16 {
		steps.Go(func() {
			for range 20 {
				if err := Attach(job, []step.Device{full}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	steps.Wait()
	if out, _ := inCgroup(t, job, "exec 3<"+full.Path); !strings.Contains(out, "not permitted") {
		t.Errorf("opening it: %q", out)
	}
}

func inCgroup(t *testing.T, cgroup, script string) (string, error) {
	t.Helper()
	fd, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	cmd := exec.Command("/bin/sh", "-c", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(fd.Fd())}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func mknod(t *testing.T, dir, name string, mode uint32, major, minor uint32) step.Device {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := unix.Mknod(path, mode|0o666, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
	d, err := Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if d.Major != major || d.Minor != minor {
		t.Fatalf("Stat(%q) = %+v, want %d:%d", path, d, major, minor)
	}
	return d
}

func TestAttachRefuses(t *testing.T) {
	if err := Attach("/nowhere", []step.Device{{Type: "p"}}); err == nil || !strings.Contains(err.Error(), "neither") {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := Stat("/nowhere"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Stat of nothing: %v", err)
	}
	if _, err := Stat("/"); err == nil {
		t.Error("Stat of a directory gives a device")
	}
}
