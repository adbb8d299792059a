package jobcontainer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The points at which a fault is injected, in their order.
var (
	createPoints = []string{"unpinned", "removed", "mounted", "recorded", "jobdir", "private", "user", "unshared", "script", "covered", "pinned", "committed"}
	deletePoints = []string{"unpinned", "removed"}
)

// noded is killed at each point; the next one finds job 2 running, as it was,
// and leaves nothing of job 1.
func TestRootKilledAtEveryPoint(t *testing.T) {
	var all []string
	for _, p := range createPoints {
		all = append(all, "create:"+p)
	}
	for _, p := range deletePoints {
		all = append(all, "delete:"+p)
	}
	for _, at := range all {
		t.Run(at, func(t *testing.T) {
			f := newFixture(t)
			f.script("exit 0\n")
			f.killCopy(at)
			c := f.plugin(2)
			if ns, err := c.Join(1); err != nil || ns.Mount != nil {
				t.Error("the job that was half made has a namespace")
			}
			if exists(f.private(1)) || exists(filepath.Join(f.cfg.RunDir, "1")) {
				t.Error("something of the job is still there")
			}
			f.user(c, 2, "touch /tmp/goes-on && ls /dev/shm")
			f.create(c, 1)
			f.remove(c, 1)
			f.remove(c, 2)
			f.wantNothing()
		})
	}
}

// noded believes that the job runs: Restore says where it does not, and Delete
// cleans up in either case.
func TestRootDeleteAfterKill(t *testing.T) {
	for _, p := range createPoints {
		f := newFixture(t)
		f.script("exit 0\n")
		f.killCopy("create:" + p)
		c, err := NewTmpfs(f.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Restore(t.Context(), []uint32{1, 2}); (err == nil) != (p == "pinned" || p == "committed") {
			t.Errorf("killed at %s: Restore says %v", p, err)
		}
		f.remove(c, 1)
		f.remove(c, 2)
		f.wantNothing()
	}
}

// killCopy runs this test binary as a noded that is killed.
func (f *fixture) killCopy(at string) {
	f.t.Helper()
	self, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(self, f.top)
	cmd.Env = append(os.Environ(), killVar+"="+at)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		f.t.Fatalf("the copy was not killed at %s: %v: %s", at, err, out)
	}
}

// An error at each point undoes everything, and the job can be made afterwards.
func TestRootErrorAtEveryPoint(t *testing.T) {
	fault := errors.New("injected")
	for _, p := range createPoints {
		t.Run(p, func(t *testing.T) {
			f := newFixture(t)
			c := f.plugin()
			hit := false
			c.hook = func(point string) error {
				if point == p && !hit {
					hit = true
					return fault
				}
				return nil
			}
			if err := c.Create(t.Context(), 1, testUser); !errors.Is(err, fault) {
				t.Fatalf("error %v, want the injected one", err)
			}
			f.wantNothing()
			f.create(c, 1)
			f.remove(c, 1)
			f.wantNothing()
		})
	}
}

func TestRootRestoreKeepsRunningJobs(t *testing.T) {
	f := newFixture(t)
	first := f.plugin()
	for job := range uint32(3) {
		f.create(first, job+1)
		f.user(first, job+1, fmt.Sprintf("echo %d > /tmp/job", job+1))
	}
	if err := first.Fini(); err != nil { // SIGTERM: jobs go on
		t.Fatal(err)
	}
	second := f.plugin(1, 3)
	for _, job := range []uint32{1, 3} {
		if got := f.user(second, job, "cat /tmp/job"); got != fmt.Sprint(job) {
			t.Errorf("job %d sees %q after the restart", job, got)
		}
	}
	if exists(f.private(2)) || exists(filepath.Join(f.cfg.RunDir, "2")) {
		t.Error("the ended job is still there")
	}
	f.remove(second, 1)
	if m := mountsWith(t, f.top); len(m) != 2 { // RUN/jobs and one pin
		t.Errorf("mounts with one job left: %q", m)
	}
	f.remove(second, 3)
	f.wantNothing()
}

func TestRootRestoreReportsALostNamespace(t *testing.T) {
	f := newFixture(t)
	c, err := NewTmpfs(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Restore(t.Context(), []uint32{4})
	if err == nil || !strings.Contains(err.Error(), "job 4") || !strings.Contains(err.Error(), f.cfg.RunDir+"/4/ns") {
		t.Errorf("error %v, want one with the job and the path", err)
	}
	// Its next step must not get an empty /tmp, nor the node's.
	if err := c.Create(t.Context(), 4, testUser); err == nil || !strings.Contains(err.Error(), f.cfg.RunDir+"/4/ns") {
		t.Errorf("a step was added: %v", err)
	}
	f.remove(c, 4)
	f.create(c, 4)
	f.remove(c, 4)
	f.wantNothing()
}

// After a reboot RUN is empty and BasePath is not.
func TestRootRestoreAfterReboot(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.user(c, 1, "touch /tmp/x")
	f.reboot(c)
	f.plugin()
	if exists(f.private(1)) {
		t.Error("a directory of before the reboot is still there")
	}
	f.wantNothing()
}

// reboot leaves what one does: the directories, without RUN.
func (f *fixture) reboot(c *Tmpfs) {
	f.t.Helper()
	if err := c.Fini(); err != nil {
		f.t.Fatal(err)
	}
	f.unmount()
	if err := os.RemoveAll(f.cfg.RunDir); err != nil {
		f.t.Fatal(err)
	}
}

// The configuration was changed while noded was down: the old BasePath is
// cleaned all the same.
func TestRootRestoreWithAnotherBasePath(t *testing.T) {
	f := newFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.create(c, 2)
	old1, old2 := f.private(1), f.private(2)
	if err := c.Fini(); err != nil {
		t.Fatal(err)
	}
	f.cfg.BasePath = f.top + "/base2"
	c = f.plugin(2)
	if exists(old1) || !exists(old2) {
		t.Errorf("the ended job's directory there: %v, the running one's: %v", exists(old1), exists(old2))
	}
	f.remove(c, 2)
	if exists(filepath.Dir(filepath.Dir(old2))) {
		t.Error("the running job's directory was not found at its end")
	}
	f.wantNothing()
}

func TestRootOtherFilesAreLeftAlone(t *testing.T) {
	f := newFixture(t)
	for _, d := range []string{f.cfg.RunDir + "/notes", f.cfg.BasePath + "/0ther000/1/0-tmp", f.cfg.RunDir + "/007"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := f.plugin()
	f.create(c, 1)
	f.remove(c, 1)
	for _, d := range []string{f.cfg.RunDir + "/notes", f.cfg.BasePath + "/0ther000/1/0-tmp", f.cfg.RunDir + "/007"} {
		if !exists(d) {
			t.Errorf("%s was removed", d)
		}
	}
}
