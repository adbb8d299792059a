package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// private is a folder of bob's, for all to write to, as the file in it is, but in one that no other
// user can enter; and a process of bob's that is in there and has the file open.
func (n *node) private(t *testing.T) (dir string, pid int) {
	t.Helper()
	dir = n.path("private", "shared")
	file := filepath.Join(dir, "theirs")
	must(t, os.Mkdir(n.path("private"), 0o700))
	must(t, os.Mkdir(dir, 0o755))
	must(t, os.WriteFile(file, []byte("secret"), 0o644))
	for path, mode := range map[string]os.FileMode{n.path("private"): 0o700, dir: 0o777, file: 0o666} {
		must(t, os.Chmod(path, mode))
		must(t, os.Chown(path, int(bob.uid), int(bob.gid)))
	}
	open, err := os.OpenFile(file, os.O_RDWR, 0)
	must(t, err)
	defer open.Close()
	// Nothing in its command line and environment names the node's folder: it is no leftover.
	sleep := exec.Command("sleep", "3600")
	sleep.Dir, sleep.Stdin, sleep.Env = dir, open, []string{"PATH=/usr/bin:/bin"}
	sleep.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: bob.uid, Gid: bob.gid}}
	must(t, sleep.Start())
	t.Cleanup(func() {
		_ = sleep.Process.Kill()
		_ = sleep.Wait()
		if b := readFile(t, file); b != "secret" {
			t.Errorf("bob's file has %q", b)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("bob's folder has %v, %v", entries, err)
		}
	})
	return dir, sleep.Process.Pid
}

// TestRootMagicLinks: no path that a user names leads, by links in /proc to what another user's
// process has open or is in, where the user may not go: as the step's daemons open it, as a task does,
// and as root's client does for the user.
func TestRootMagicLinks(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	dir, pid := n.private(t)
	must(t, os.Symlink(fmt.Sprintf("/proc/%d/cwd", pid), filepath.Join(n.wd, "link")))
	script := n.userFile(t, "script", "#!/bin/sh\necho batch\n", 0o755)
	asRoot := []string{"run", "--uid", alice.name, "-l"} // the client itself opens the file
	for _, way := range []string{
		fmt.Sprintf("/proc/%d/cwd", pid), fmt.Sprintf("/proc/%d/root%s", pid, dir), filepath.Join(n.wd, "link"),
	} {
		for _, c := range []call{
			{args: []string{"run", "-o", way + "/new", "true"}},
			{args: []string{"run", "-o", way + "/theirs", "true"}},
			{args: []string{"run", "-e", way + "/new", "--open-mode=append", "true"}},
			{args: []string{"run", "-i", way + "/theirs", "cat"}},
			{args: []string{"batch", "-W", "-o", way + "/new", script}},
			{root: true, args: append(asRoot, "-o", way+"/new", "true")},
			{root: true, args: append(asRoot, "-o", way+"/theirs", "echo", "written")},
		} {
			if r := n.do(t, c); r.code == 0 || strings.Contains(r.out, "secret") {
				t.Errorf("%v: %v", c.args, r)
			}
		}
		if r := n.ctl(t, "run", "-D", way, "sh", "-c", "pwd; cat theirs"); r.out != "/tmp\n" {
			t.Errorf("run -D %s: %v", way, r)
		}
	}
	if r := n.ctl(t, "run", "-i", fmt.Sprintf("/proc/%d/fd/0", pid), "cat"); r.code == 0 || r.out != "" {
		t.Errorf("another's descriptor: %v", r)
	}
	n.serves(t)
}

// TestRootOwnDescriptors: a task's output goes into none of the descriptors that the daemons and
// the task have open before its program: pipes and channels of the step's own.
func TestRootOwnDescriptors(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	for _, what := range []string{"-o", "-e", "-i"} {
		for fd := range 24 {
			path := fmt.Sprintf("%s/%d", [2]string{"/proc/self/fd", "/dev/fd"}[fd%2], fd)
			if r := n.ctl(t, "run", "-n2", what, path, "echo", "written"); r.code == 0 || strings.Contains(r.out, "written") {
				t.Errorf("run %s %s: %v", what, path, r)
			}
		}
	}
	r := n.ctl(t, "run", "-e", "/dev/stdout", "true")
	contains(t, "/dev/stdout", r.err, `"/dev/stdout" leads through a link of /proc that stands for an open file`)
	n.serves(t)
}
