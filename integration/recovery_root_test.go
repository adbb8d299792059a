package integration

import (
	"bytes"
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
)

// TestRootStateLost: a journal that is gone, cut or damaged costs no step that runs; where
// only one of the two is gone it costs nothing at all.
func TestRootStateLost(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	durable, volatile := n.path("spool", "durable.journal"), filepath.Join(n.run, "volatile.journal")
	change := func(t *testing.T, path string, f func(text []byte) []byte) {
		t.Helper()
		text, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, f(text), 0o600))
	}
	for _, c := range []struct {
		name string
		do   func(t *testing.T)
		says string
	}{
		{"all removed", func(t *testing.T) { must(t, errors.Join(os.Remove(durable), os.Remove(volatile))) }, "that the state does not have"},
		{"run directory's removed", func(t *testing.T) { must(t, os.Remove(volatile)) }, "that the state does not have"},
		{"a byte changed", func(t *testing.T) {
			change(t, volatile, func(text []byte) []byte {
				text[bytes.LastIndex(text, []byte(`"state":"`))+10] ^= 1
				return text
			})
		}, "was damaged"},
		{"overwritten", func(t *testing.T) {
			change(t, volatile, func([]byte) []byte { return []byte(strings.Repeat("no journal\n", 3000)) })
		}, "was damaged"},
		{"spool emptied", func(t *testing.T) {
			entries, err := os.ReadDir(n.path("spool"))
			must(t, err)
			for _, e := range entries {
				must(t, os.RemoveAll(n.path("spool", e.Name())))
			}
		}, "found stepd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.serves(t)
			p, step := startStubborn(t, n)
			n.kill9(t)
			c.do(t)
			n.boot(t)
			n.logs(t, c.says)
			if now := n.show(t, step.id()); now.State != "RUNNING" || now.StepdPID != step.StepdPID {
				t.Errorf("the step: %+v", now)
			}
			if c.says == "was damaged" {
				if r := n.ctl(t, "run", "true"); r.code != 1 || !strings.Contains(r.err, "was damaged, the pieces are kept as") {
					t.Errorf("a step before the node is resumed: %v", r)
				}
				must(t, n.ctlErrorRoot(t, "node", "resume"))
			}
			n.serves(t)
			if last := n.last(t); last.JobID <= step.JobID {
				t.Errorf("job %d comes after job %d", last.JobID, step.JobID)
			}
			n.letGo(t)
			if r := p.wait(t); r.code != 3 {
				t.Errorf("the client: %v", r)
			}
			if doc := n.ended(t, step.id()); doc.State != "FAILED" || doc.ExitCode == nil || *doc.ExitCode != 3 || len(doc.Tasks) != 2 {
				t.Errorf("the record: %+v", doc)
			}
			n.idle(t)
			n.checkClean(t)
		})
	}
	kept, err := filepath.Glob(volatile + ".damaged-*")
	if err != nil || len(kept) != 2 {
		t.Errorf("kept %q, %v", kept, err)
	}
}

// TestRootSpoolFull: the disk of the spool fills up while a step runs: the step ends as
// its tasks do, and its record is whole when there is room again.
func TestRootSpoolFull(t *testing.T) {
	waits(t)
	n := startNode(t, site{Stepd: "MetricsListen=unix\n"})
	n.kill9(t)
	must(t, unix.Mount("spool", n.path("spool"), "tmpfs", 0, "size=24m,mode=0711"))
	unmount := func() {
		if err := unix.Unmount(n.path("spool"), unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
	defer unmount()
	n.boot(t)
	p, step := startStubborn(t, n)
	filler := n.path("spool", "filler")
	f, err := os.Create(filler)
	must(t, err)
	block := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(block)
	}
	f.Close()
	if now := n.show(t, step.id()); now.State != "RUNNING" {
		t.Errorf("the step: %+v", now)
	}
	if r := n.ctl(t, "run", "true"); r.code != 1 || !strings.Contains(r.err, "no space left on device") {
		t.Errorf("a step on a full spool: %v", r)
	}
	n.notReady(t, fmt.Sprintf("the file system of the spool %q has ", n.path("spool")))
	n.letGo(t)
	if r := p.wait(t); r.code != 3 {
		t.Errorf("the client: %v", r)
	}
	must(t, os.Remove(filler))
	if doc := n.ended(t, step.id()); doc.State != "FAILED" || doc.ExitCode == nil || *doc.ExitCode != 3 {
		t.Errorf("the record: %+v", doc)
	}
	n.serves(t)
	n.idle(t)
	if code, text := n.page(t, "/readyz"); code != 200 {
		t.Errorf("readyz with room again: %d %q", code, text)
	}
	must(t, n.cmd.Process.Signal(unix.SIGTERM)) // before its spool goes
	<-n.done
}

// TestRootSpoolStops: the server of the spool's file system stops while a step runs: the
// step goes on, clients are answered, requests that need the spool are refused with its
// name, and when the server is back all goes on.
func TestRootSpoolStops(t *testing.T) {
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no /dev/fuse: nothing else here is a file system that does not answer")
	}
	n := startNode(t, site{})
	must(t, n.cmd.Process.Signal(syscall.SIGTERM))
	<-n.done
	must(t, os.Rename(n.path("spool"), n.path("served")))
	must(t, os.Mkdir(n.path("spool"), 0o711))
	server := exec.Command("bindfs", "-f", "served", "spool") // nothing names the node's directory
	server.Dir, server.Stderr = n.dir, os.Stderr
	must(t, server.Start())
	// Before the node's own cleanup: else that would wait for it.
	defer func() {
		_ = server.Process.Signal(syscall.SIGCONT) // it may be ended
		if !n.exited() {
			_ = n.cmd.Process.Signal(syscall.SIGTERM)
			select {
			case <-n.done:
			case <-time.After(callTimeout):
				t.Error("noded does not end")
			}
		}
		_ = unix.Unmount(n.path("spool"), unix.MNT_DETACH) // as above
		_ = server.Process.Kill()
		_ = server.Wait() // it was killed
	}()
	eventually(t, callTimeout, "the mount", func() error {
		var st unix.Statfs_t
		if err := unix.Statfs(n.path("spool"), &st); err != nil || st.Type != unix.FUSE_SUPER_MAGIC {
			return fmt.Errorf("file system %#x, %v", st.Type, err)
		}
		return nil
	})
	n.boot(t)
	p, step := startStubborn(t, n)
	again := func(stepd string) { // a busy disk may take longer than is to be waited for here
		n.kill9(t)
		n.write(t, "stepd.conf", stepd)
		n.boot(t)
	}
	again("SpoolTimeout=1\nMetricsListen=unix\n")
	// The journal's write hangs first, or the event log's.
	for _, asked := range [][][]string{{{"batch", "--wrap=true"}, {"run", "true"}}, {{"run", "true"}, {"run", "true"}, {"batch", "--wrap=true"}}} {
		must(t, server.Process.Signal(syscall.SIGSTOP))
		for _, args := range asked {
			if r := n.ctl(t, args...); r.code != 1 || !strings.Contains(r.err, n.path("spool")) || !strings.Contains(r.err, "has not answered for") {
				t.Errorf("stepctl %q: %v", args, r)
			}
		}
		n.logs(t, "has not answered for")
		if ps := n.ps(t); len(ps) != 1 || ps[0].id() != step.id() || ps[0].State != "RUNNING" {
			t.Errorf("ps: %+v", ps)
		}
		if r := n.ctl(t, "node", "status"); r.code != 0 || !strings.Contains(r.out, "DRAINING") || !strings.Contains(r.out, "has not answered for") {
			t.Errorf("node status: %v", r)
		}
		n.notReady(t, n.path("spool"))
		for _, task := range n.ps(t)[0].Tasks {
			if task.PID == nil || syscall.Kill(*task.PID, 0) != nil {
				t.Errorf("task %d has ended", task.Rank)
			}
		}
		must(t, server.Process.Signal(syscall.SIGCONT))
		n.logs(t, "has answered")
		eventually(t, callTimeout, "a node that is ready", func() error {
			if code, text := n.page(t, "/readyz"); code != 200 {
				return fmt.Errorf("%d %q", code, text)
			}
			return nil
		})
		if ps := n.ps(t); len(ps) != 1 {
			t.Errorf("what was refused runs: %+v", ps)
		}
	}
	again("")
	n.serves(t)
	n.letGo(t)
	if r := p.wait(t); r.code != 3 {
		t.Errorf("the client: %v", r)
	}
	if doc := n.ended(t, step.id()); doc.State != "FAILED" || doc.ExitCode == nil || *doc.ExitCode != 3 {
		t.Errorf("the record: %+v", doc)
	}
	n.idle(t)
}
