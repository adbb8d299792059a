package integration

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// goneWithin is how soon after its end all of a step is gone, on a machine whose CPUs
// others want as well.
const goneWithin = 20 * time.Second

// checkClean fails the test unless all of every step is gone: processes,
// cgroups, mounts, sockets, container directories.
func (n *node) checkClean(t testing.TB) {
	t.Helper()
	deadline := time.Now().Add(goneWithin)
	for {
		left := n.leftovers()
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("left behind %v after the end:\n  %s", goneWithin, strings.Join(left, "\n  "))
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// leftovers lists everything of steps that exists now.
func (n *node) leftovers() []string {
	var left []string
	for _, p := range n.processes() {
		left = append(left, "process "+p.String())
	}
	for _, dir := range n.cgroups() {
		if strings.Contains(dir, "/job_") {
			left = append(left, "cgroup "+dir)
		}
	}
	for _, m := range n.mounts() {
		// noded may keep one mount of its own for the containers' sake.
		if m != filepath.Join(n.run, "jobs") || n.exited() {
			left = append(left, "mount "+m)
		}
	}
	for _, dir := range []string{"steps", "jobs"} {
		entries, err := os.ReadDir(filepath.Join(n.run, dir))
		if err != nil {
			continue // not made yet
		}
		for _, e := range entries {
			left = append(left, "file "+filepath.Join(n.run, dir, e.Name()))
		}
	}
	return left
}

// proc is a live process that belongs to a node's steps.
type proc struct {
	pid     int
	comm    string
	cmdline string
	cgroup  string
}

func (p proc) String() string { return fmt.Sprintf("%d (%s) %q", p.pid, p.comm, p.cmdline) }

// processes lists the node's stepds, hosts and tasks: those in its cgroups,
// and those whose command line or environment names its directory. A zombie
// counts as gone.
func (n *node) processes() []proc {
	var found []proc
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return []proc{{cmdline: err.Error()}}
	}
	self := os.Getpid()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == self || pid == n.cmd.Process.Pid {
			continue
		}
		if p, ok := n.ours(pid); ok {
			found = append(found, p)
		}
	}
	return found
}

func (n *node) ours(pid int) (proc, bool) {
	read := func(name string) []byte {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			return nil // gone meanwhile, or a kernel thread
		}
		return b
	}
	cmdline := read("cmdline")
	p := proc{
		pid: pid, comm: strings.TrimSpace(string(read("comm"))),
		cmdline: strings.TrimSpace(string(bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '}))),
		cgroup:  string(read("cgroup")),
	}
	mine := strings.Contains(p.cgroup, "stepd-"+n.hash()) || bytes.Contains(cmdline, []byte(n.dir)) ||
		bytes.Contains(read("environ"), []byte(n.dir))
	// The keeper holds the node's scope of systemd for as long as noded lives.
	if !mine || p.comm == "stepctl" || p.comm == "noded" || (p.comm == "stepd-keeper" && !n.exited()) {
		return p, false
	}
	stat := string(read("stat"))
	if i := strings.LastIndexByte(stat, ')'); i < 0 || len(stat) < i+3 || stat[i+2] == 'Z' || stat[i+2] == 'X' {
		return p, false
	}
	return p, true
}

// cgroups lists the cgroup directories that carry the node's hash.
func (n *node) cgroups() []string {
	var found []string
	name := "stepd-" + n.hash()
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(path, name) {
			found = append(found, path)
		}
		return nil // a directory that goes away under us is what we hope for
	})
	if err != nil {
		return []string{err.Error()}
	}
	return found
}

// cgroupRootGone reports what noded has left of its cgroup tree.
func (n *node) cgroupRootGone() error {
	if left := n.cgroups(); len(left) > 0 {
		return fmt.Errorf("cgroups left after noded's end: %v", left)
	}
	return nil
}

// mounts lists the mount points below the node's directory, in the test's own
// mount namespace and in noded's.
func (n *node) mounts() []string {
	var found []string
	seen := map[string]bool{}
	for _, pid := range []int{os.Getpid(), n.cmd.Process.Pid} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
		if err != nil {
			continue // noded has ended, and its namespace with it
		}
		for _, line := range strings.Split(string(b), "\n") {
			f := strings.Fields(line)
			if len(f) > 4 && strings.HasPrefix(f[4], n.dir) && !seen[f[4]] {
				seen[f[4]] = true
				found = append(found, f[4])
			}
		}
	}
	return found
}

// killLeftovers ends what a failed test has left, so that the next test and
// the machine are not burdened with it.
func killLeftovers(n *node) {
	for _, p := range n.processes() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL) // it may have gone by itself
	}
	mounts := n.mounts()
	for i := len(mounts) - 1; i >= 0; i-- {
		_ = syscall.Unmount(mounts[i], syscall.MNT_DETACH) // best effort after a failure
	}
	dirs := n.cgroups()
	for i := len(dirs) - 1; i >= 0; i-- {
		_ = os.WriteFile(filepath.Join(dirs[i], "cgroup.kill"), []byte("1"), 0) // v2 only
		_ = os.Remove(dirs[i])                                                  // deepest first
	}
}

// findProcess returns the node's only process of that name.
func (n *node) findProcess(t testing.TB, comm string) proc {
	t.Helper()
	var found []proc
	for _, p := range n.processes() {
		if p.comm == comm {
			found = append(found, p)
		}
	}
	if len(found) != 1 {
		t.Fatalf("want one process %q, found %v among %v", comm, found, n.processes())
	}
	return found[0]
}

// killNow sends SIGKILL.
func killNow(pid int) error { return syscall.Kill(pid, syscall.SIGKILL) }
