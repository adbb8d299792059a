package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// resumes waits until noded has ended its drain by itself.
func (n *node) resumes(t *testing.T) {
	t.Helper()
	eventually(t, callTimeout, "a node that is not drained", func() error {
		if doc := n.status(t); doc.Reason != "" {
			return fmt.Errorf("it is %s, %q", doc.State, doc.Reason)
		}
		return nil
	})
}

// blackHole makes the node one that cannot start steps, and mends it again: its first step is refused
// with the reason, others since the node is drained with it, over a restart too; none is kept as
// FAILED; and the node comes back by itself. first are options that the first step needs to fail.
func (n *node) blackHole(t *testing.T, damage, mend func(), reason string, first ...string) {
	t.Helper()
	n.serves(t)
	n.idle(t)
	before := len(n.ps(t, "--all"))
	damage()
	if r := n.ctl(t, append(append([]string{"run"}, first...), "true")...); r.code != 1 || !strings.Contains(r.err, reason) || strings.Contains(r.err, "drained") {
		t.Errorf("the first step: %v", r)
	}
	if doc := n.status(t); doc.State != "DRAINED" || !strings.Contains(doc.Reason, reason) {
		t.Errorf("the node is %s, %q", doc.State, doc.Reason)
	}
	for _, args := range [][]string{{"run", "true"}, {"batch", "--wrap=true"}, {"alloc", "true"}} {
		if r := n.ctl(t, args...); r.code != 1 || !strings.Contains(r.err, "node is drained: ") {
			t.Errorf("another %s: %v", args[0], r)
		}
	}
	if all := n.ps(t, "--all"); len(all) != before {
		t.Errorf("%d steps were refused, and are kept: %+v", len(all)-before, all)
	}
	mend()
	n.resumes(t)
	n.serves(t)
}

// fill fills a file system, and returns what takes it back.
func fill(t *testing.T, dir string) (mend func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	must(t, err)
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return func() { must(t, os.Remove(path)) }
}

// onTmpfs starts noded anew with a spool on a small file system.
func (n *node) onTmpfs(t *testing.T, options string) {
	t.Helper()
	n.kill9(t)
	must(t, unix.Mount("spool", n.path("spool"), "tmpfs", 0, "mode=0711,"+options))
	t.Cleanup(func() {
		_ = n.cmd.Process.Signal(syscall.SIGTERM) // before its spool goes
		<-n.done
		if err := unix.Unmount(n.path("spool"), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	n.boot(t)
}

// TestRootBlackHole: a node without room in its spool, without its directories or its programs
// is drained after the first step that it cannot start.
func TestRootBlackHole(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	must(t, os.Mkdir(n.path("bin"), 0o755))
	for _, name := range []string{"noded", "stepd", "spankhost", "pmixhost"} {
		text, err := os.ReadFile(binary(t, name))
		must(t, err)
		must(t, os.WriteFile(n.path("bin", name), text, 0o755))
	}
	n.before = []string{"sh", "-c", `shift; exec "$0" "$@"`, n.path("bin", "noded")}
	n.onTmpfs(t, "size=24m")
	var mend func()
	t.Run("full", func(t *testing.T) {
		n.blackHole(t, func() { mend = fill(t, n.path("spool")) }, func() { mend() }, "no space left on device")
	})
	for _, name := range []string{"stepd", "spankhost"} {
		t.Run(name+" missing", func(t *testing.T) {
			path := n.path("bin", name)
			n.blackHole(t, func() { must(t, os.Rename(path, path+".gone")) }, func() { must(t, os.Rename(path+".gone", path)) }, fmt.Sprintf("cannot execute %q", path))
		})
	}
	t.Run("pmixhost missing", func(t *testing.T) {
		path := n.path("bin", "pmixhost")
		damage, mend := func() { must(t, os.Rename(path, path+".gone")) }, func() { must(t, os.Rename(path+".gone", path)) }
		ok(t, "a step with it", n.ctl(t, "run", "--mpi=pmix", "true"))
		damage()
		ok(t, "a step of another type", n.ctl(t, "run", "--mpi=none", "true"))
		n.idle(t)
		mend()
		n.blackHole(t, damage, mend, fmt.Sprintf("cannot execute %q", path), "--mpi=pmix")
	})
	t.Run("events gone", func(t *testing.T) {
		// A file in its place, else noded makes it anew at once.
		path := n.path("spool", "events")
		n.blackHole(t, func() { must(t, errors.Join(os.RemoveAll(path), os.WriteFile(path, nil, 0o600))) }, func() { must(t, os.Remove(path)) }, "cannot create event log: ")
	})
	t.Run("over a restart", func(t *testing.T) {
		mend = fill(t, n.path("spool"))
		if r := n.ctl(t, "run", "true"); r.code != 1 {
			t.Errorf("the first step: %v", r)
		}
		n.kill9(t)
		n.boot(t)
		if doc := n.status(t); doc.State != "DRAINED" || !strings.Contains(doc.Reason, "no space left on device") {
			t.Errorf("a node that has started on a full spool is %s, %q", doc.State, doc.Reason)
		}
		mend()
		n.resumes(t)
		n.serves(t)
	})
	t.Run("full at the start", func(t *testing.T) {
		drained := n.start(t, call{args: []string{"run", "-J", "held", "sleep", "86400"}})
		held := n.runs(t, "held")
		must(t, n.cmd.Process.Signal(syscall.SIGTERM))
		<-n.done
		mend = fill(t, n.path("spool"))
		n.boot(t)
		if doc := n.status(t); !strings.HasPrefix(doc.State, "DRAIN") || !strings.Contains(doc.Reason, "no space left on device") {
			t.Errorf("a node that has started on a full spool is %s, %q", doc.State, doc.Reason)
		}
		if r := n.ctl(t, "run", "true"); r.code != 1 || !strings.Contains(r.err, "node is drained: ") {
			t.Errorf("another step: %v", r)
		}
		ok(t, "cancel", n.ctl(t, "cancel", held.id())) // which it serves
		drained.wait(t)
		mend()
		n.resumes(t)
		n.serves(t)
	})
	t.Run("an administrator's drain", func(t *testing.T) {
		mend = fill(t, n.path("spool"))
		if r := n.ctl(t, "run", "true"); r.code != 1 {
			t.Errorf("the first step: %v", r)
		}
		mend()
		must(t, n.ctlErrorRoot(t, "node", "drain", "maintenance"))
		n.kill9(t)
		n.boot(t)
		if doc := n.status(t); doc.State != "DRAINED" || doc.Reason != "maintenance" {
			t.Errorf("the node is %s, %q", doc.State, doc.Reason)
		}
		must(t, n.ctlErrorRoot(t, "node", "resume"))
	})
}

// TestRootNoInodes: a spool that has room for bytes and for no file is as a full one.
func TestRootNoInodes(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	n.onTmpfs(t, "size=64m,nr_inodes=400")
	var names []string
	n.blackHole(t, func() {
		for i := range 1000 {
			name := n.path("spool", fmt.Sprint("filler", i))
			f, err := os.Create(name)
			if errors.Is(err, unix.ENOSPC) {
				return
			}
			must(t, err)
			f.Close()
			names = append(names, name)
		}
		t.Fatal("there is room for 1000 files")
	}, func() {
		for _, name := range names {
			must(t, os.Remove(name))
		}
	}, "no space left on device")
}

// TestRootDirectoriesGone: a spool or a run directory that is moved away drains the node with the
// first step that needs it, and the node takes steps again when the directory is back. Another
// directory in the spool's place is not taken for it.
func TestRootDirectoriesGone(t *testing.T) {
	waits(t)
	for _, tc := range []struct{ name, reason, yet string }{
		{"spool", "cannot create event log: ", "is not the directory that noded has opened: bring that back, or restart noded"},
		{"run", "no such file or directory", "cannot ask the file system of the run directory"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := startNode(t, site{})
			n.serves(t)
			n.idle(t)
			before := len(n.ps(t, "--all"))
			dir := n.path(tc.name)
			must(t, os.Rename(dir, dir+".gone"))
			if tc.name == "run" {
				n.run += ".gone" // its socket serves as before
			} else {
				must(t, os.Mkdir(dir, 0o711))
			}
			if r := n.ctl(t, "run", "true"); r.code != 1 || !strings.Contains(r.err, tc.reason) || strings.Contains(r.err, "drained") {
				t.Errorf("the first step: %v", r)
			}
			if all := n.ps(t, "--all"); len(all) != before {
				t.Errorf("a step was refused, and is kept: %+v", all)
			}
			n.logs(t, tc.yet)
			if doc := n.idle(t); doc.State != "DRAINED" || !strings.Contains(doc.Reason, tc.reason) {
				t.Errorf("the node is %s, %q", doc.State, doc.Reason)
			}
			if r := n.ctl(t, "run", "true"); r.code != 1 || !strings.Contains(r.err, "node is drained: ") {
				t.Errorf("another step: %v", r)
			}
			if tc.name == "run" {
				n.run = dir
			} else if err := os.Remove(dir); err != nil {
				t.Errorf("something is in the other directory: %v", err)
			}
			must(t, os.Rename(dir+".gone", dir))
			n.resumes(t)
			n.serves(t)
		})
	}
}
