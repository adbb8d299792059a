package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step/launch"
)

// spankhostBeside is the program of the last make.
func spankhostBeside() (string, error) {
	dir := os.Getenv("STEPD_BIN")
	if dir == "" {
		dir = "../bin"
	}
	path, err := filepath.Abs(filepath.Join(dir, "spankhost"))
	if err == nil {
		_, err = os.Stat(path)
	}
	return path, err
}

// linuxIn makes the configuration one of job_container/linux.
func linuxIn(cfg Config) (Config, error) {
	var err error
	cfg.Keeper, err = spankhostBeside()
	cfg.PIDNamespace, cfg.UserNamespace = true, true
	cfg.Place = func(uint32) (Place, error) { return Place{}, nil }
	return cfg, err
}

func newLinuxFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	var err error
	if f.cfg, err = linuxIn(f.cfg); err != nil {
		t.Fatalf("no spankhost: %v (run make first)", err)
	}
	return f
}

// inside is a shell in all namespaces of the job.
func (f *fixture) inside(c *Tmpfs, job uint32, script string, args ...string) *exec.Cmd {
	f.t.Helper()
	ns, err := c.Join(job)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(ns.Close)
	argv := []string{"--mount=/proc/self/fd/3", "--pid=/proc/self/fd/4", "--user=/proc/self/fd/5"}
	cmd := exec.Command("nsenter", append(append(argv, args...), "sh", "-c", script)...)
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{ns.Mount, ns.PID, ns.User}
	return cmd
}

// keeperOf is the pid of the process that keeps the job's pid namespace.
func (f *fixture) keeperOf(job uint32) int {
	f.t.Helper()
	b, err := os.ReadFile(filepath.Join(f.cfg.RunDir, jobName(job), keeperName))
	if err != nil {
		f.t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(b), &pid); err != nil {
		f.t.Fatal(err)
	}
	return pid
}

func gone(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ") // a zombie counts as gone
}

// The job's processes see no others, its root has no power, and what is its own
// goes with it.
func TestRootPIDAndUserNamespace(t *testing.T) {
	f := newLinuxFixture(t)
	c := f.plugin()
	f.create(c, 1)
	f.create(c, 2)
	keeper := f.keeperOf(1)
	as := asUser(testUser.UID)
	for _, r := range []struct {
		name, script, want string
		args               []string
	}{
		{"the processes", "cd /proc; ls -d [0-9]* >/tmp/list; wc -l </tmp/list; cat 1/comm", "2\nstepd-init", as},
		{"its ids are those of outside", "id -u; touch /tmp/x; stat -c %u /tmp/x", "7001\n7001", as},
		{"process 1 heeds no user", "kill -9 1 2>/dev/null; readlink /proc/1/exe || echo closed", "closed", as},
		{"nor a root of the job", "kill -9 1 2>/dev/null; readlink /proc/1/exe >/dev/null || echo closed", "closed", nil},
		{"whose power ends here", "id -u; mount -t tmpfs none /mnt 2>/dev/null || echo no mount; hostname x 2>/dev/null || echo no name; umount /tmp 2>/dev/null || echo no umount", "0\nno mount\nno name\nno umount", nil},
		{"no process of the node is in reach", fmt.Sprintf("kill -0 %d 2>/dev/null || echo none", keeper), "none", nil},
	} {
		if got := f.output(f.inside(c, 1, r.script, r.args...)); got != r.want {
			t.Errorf("%s: got %q, want %q", r.name, got, r.want)
		}
	}
	// What a process leaves behind is reaped, and killed with the job.
	f.output(f.inside(c, 1, "setsid sleep 86400 >/dev/null 2>&1 & setsid true & exit 0", as...))
	if gone(keeper) {
		t.Fatal("process 1 has ended")
	}
	f.remove(c, 1)
	if !gone(keeper) {
		t.Error("process 1 goes on after its job")
	}
	if _, err := c.Join(2); err != nil {
		t.Errorf("another job: %v", err)
	}
	f.remove(c, 2)
	f.wantNothing()
}

// The next noded finds the namespaces and their keeper; one that was killed is told.
func TestRootKeeperAfterRestart(t *testing.T) {
	f := newLinuxFixture(t)
	first := f.plugin()
	for job := range uint32(3) {
		f.create(first, job+1)
	}
	keepers := []int{f.keeperOf(1), f.keeperOf(2), f.keeperOf(3)}
	if err := first.Fini(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(keepers[1], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := f.plugin(1, 2)
	if got := f.output(f.inside(second, 1, "cat /proc/1/comm")); got != "stepd-init" {
		t.Errorf("after the restart: %q", got)
	}
	waitGone(t, keepers[1])
	if _, err := second.Join(2); !errors.Is(err, launch.ErrInitGone) || !strings.Contains(err.Error(), "job 2") {
		t.Errorf("the job whose process 1 was killed: %v", err)
	}
	if err := second.Create(t.Context(), 2, testUser); err != nil {
		t.Errorf("it has a container: %v", err)
	}
	f.remove(second, 1)
	f.remove(second, 2)
	f.wantNothing()
	for job, pid := range keepers {
		if !gone(pid) {
			t.Errorf("process 1 of job %d goes on", job+1)
		}
	}
}

// A process that does not end keeps neither the job's directories nor the next noded's
// start. Here it is one whose parent, outside of the namespace, does not reap it.
func TestRootPIDNamespaceThatDoesNotEnd(t *testing.T) {
	f := newLinuxFixture(t)
	first := f.plugin()
	f.create(first, 1)
	f.create(first, 2)
	keepers := []int{f.keeperOf(1), f.keeperOf(2)}
	for job := range uint32(2) {
		cmd := f.inside(first, job+1, "echo; exec sleep 86400")
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err == nil {
			_, err = out.Read(make([]byte, 1))
		}
		if err == nil {
			err = cmd.Process.Signal(syscall.SIGSTOP)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
			waitGone(t, keepers[job])
		})
	}
	const want = "1 of a pid namespace, does not end: still there after SIGKILL"
	first.killMax = 20 * time.Millisecond
	if err := first.Delete(t.Context(), 1); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Delete: %v", err)
	}
	if err := first.Fini(); err != nil {
		t.Fatal(err)
	}
	second, err := NewTmpfs(f.cfg)
	if err != nil {
		t.Fatal(err)
	}
	second.killMax = 20 * time.Millisecond
	if err := second.Restore(t.Context(), nil); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("Restore: %v", err)
	}
	f.wantNothing()
	if gone(keepers[0]) || gone(keepers[1]) {
		t.Error("the namespaces ended: the test shows nothing")
	}
	f.remove(second, 1) // once more, as noded does in the end
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); n != 1 {
		t.Fatalf("process %d does not end: %v", pid, err)
	}
}

// The number of a keeper that has ended is another process's by now.
func TestRootKeeperIsKnownByItsNamespace(t *testing.T) {
	f := newLinuxFixture(t)
	c := f.plugin()
	f.create(c, 1)
	keeper := f.keeperOf(1)
	other := exec.Command("sleep", "86400")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { other.Process.Kill(); other.Wait() }()
	path := filepath.Join(f.cfg.RunDir, "1", keeperName)
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d\n", other.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	f.remove(c, 1)
	if gone(other.Process.Pid) {
		t.Error("a stranger was killed")
	}
	if gone(keeper) {
		t.Fatal("the keeper was found without its number: the test shows nothing")
	}
	syscall.Kill(keeper, syscall.SIGKILL)
	waitGone(t, keeper)
	f.wantNothing()
}

// noded is killed, or there is an error, at each point.
func TestRootLinuxKilledAtEveryPoint(t *testing.T) {
	points := []string{"create:user", "create:pid", "create:unshared", "create:covered", "create:pinned", "create:committed", "delete:unpinned", "delete:removed"}
	for _, at := range points {
		t.Run(at, func(t *testing.T) {
			f := newLinuxFixture(t)
			f.script("exit 0\n")
			f.killCopy("linux," + at)
			c := f.plugin(2)
			f.output(f.inside(c, 2, "test -d /proc/self"))
			f.remove(c, 2)
			f.wantNothing()
			f.wantNoKeepers()
		})
	}
	fault := errors.New("injected")
	for _, point := range []string{"user", "pid", "covered", "pinned", "committed"} {
		t.Run("error at "+point, func(t *testing.T) {
			f := newLinuxFixture(t)
			c := f.plugin()
			c.hook = func(p string) error {
				if p == point {
					return fault
				}
				return nil
			}
			if err := c.Create(t.Context(), 1, testUser); !errors.Is(err, fault) {
				t.Errorf("got %v", err)
			}
			f.wantNothing()
			f.wantNoKeepers()
		})
	}
}

// wantNoKeepers checks that no process is left that this test has made.
func (f *fixture) wantNoKeepers() {
	f.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		out, _ := exec.Command("pgrep", "-f", fmt.Sprintf(`^stepd-init: \[[12]\] %s`, f.top)).Output()
		if len(out) == 0 {
			return
		}
		if time.Now().After(deadline) {
			f.t.Errorf("left: %s", out)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestRootKeeperThatDoesNotBegin(t *testing.T) {
	f := newLinuxFixture(t)
	bad := f.top + "/keeper"
	if err := os.WriteFile(bad, []byte("#!/bin/sh\ntest \"$1\" = --keep && exit 0\necho I cannot >&2; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.cfg.Keeper = bad
	c := f.plugin()
	err := c.Create(context.Background(), 1, testUser)
	if err == nil || !strings.Contains(err.Error(), "cannot make a pid namespace for job 1: its first process has not begun") || !strings.Contains(err.Error(), "I cannot") {
		t.Errorf("got %v", err)
	}
	f.wantNothing()
	f.cfg.Keeper = f.top + "/none"
	c = f.plugin()
	if err := c.Create(context.Background(), 1, testUser); err == nil || !strings.Contains(err.Error(), f.cfg.Keeper) {
		t.Errorf("got %v", err)
	}
	f.wantNothing()
}
