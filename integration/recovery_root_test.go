package integration

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRootStateLost: a journal that is gone, empty or damaged costs no step that runs, and no
// number comes again; where anything else may be lost the node is drained with the reason. Where
// only the spool's is gone it costs nothing at all.
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
	const again = "that the state does not have"
	for _, c := range []struct {
		name string
		do   func(t *testing.T)
		says string
		why  string // of the drain; "" is none
	}{
		{"all removed", func(t *testing.T) { must(t, errors.Join(os.Remove(durable), os.Remove(volatile))) }, again, "there are files of jobs that it does not know: 1, 2"},
		{"run directory's removed", func(t *testing.T) { must(t, os.Remove(volatile)) }, again, fmt.Sprintf("the state %q is gone: steps that had ended are forgotten", volatile)},
		{"run directory's emptied", func(t *testing.T) { must(t, os.Truncate(volatile, 0)) }, again, fmt.Sprintf("the state %q is gone", volatile)},
		{"a byte changed", func(t *testing.T) {
			change(t, volatile, func(text []byte) []byte {
				text[bytes.LastIndex(text, []byte(`"state":"`))+10] ^= 1
				return text
			})
		}, "was damaged", "was damaged, the pieces are kept as"},
		{"overwritten", func(t *testing.T) {
			change(t, volatile, func([]byte) []byte { return []byte(strings.Repeat("no journal\n", 3000)) })
		}, "was damaged", "was damaged, the pieces are kept as"},
		{"spool emptied", func(t *testing.T) {
			entries, err := os.ReadDir(n.path("spool"))
			must(t, err)
			for _, e := range entries {
				must(t, os.RemoveAll(n.path("spool", e.Name())))
			}
		}, "found stepd", ""},
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
			if c.why != "" {
				if r := n.ctl(t, "run", "true"); r.code != 1 || !strings.Contains(r.err, c.why) {
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
	t.Run("all removed, and nothing runs", func(t *testing.T) {
		last := n.last(t)
		n.kill9(t)
		must(t, errors.Join(os.Remove(durable), os.Remove(volatile)))
		n.boot(t)
		if doc := n.status(t); doc.State != "DRAINED" || !strings.Contains(doc.Reason, "there are files of jobs that it does not know") {
			t.Errorf("the node is %s, %q", doc.State, doc.Reason)
		}
		must(t, n.ctlErrorRoot(t, "node", "resume"))
		n.serves(t)
		if now := n.last(t); now.JobID <= last.JobID {
			t.Errorf("job %d comes after job %d", now.JobID, last.JobID)
		}
	})
}

// TestRootCorruptions: whatever happens to the journals' bytes, noded serves, steps that run are
// found, numbers go on, and where a record is another one than before or gone, the node is drained
// with the reason.
func TestRootCorruptions(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	// The client waits as long as the test lasts.
	p := n.start(t, call{args: []string{"run", "-n", "2", "-J", "stubborn", "sh", "-c", stubborn}, limit: time.Hour})
	step := n.runs(t, "stubborn")
	rounds, seed := 40, uint64(20)
	for name, value := range map[string]any{"CORRUPTIONS": &rounds, "SEED": &seed} {
		if text := os.Getenv(name); text != "" {
			_, err := fmt.Sscan(text, value)
			must(t, err)
		}
	}
	t.Logf("SEED=%d CORRUPTIONS=%d", seed, rounds)
	rng := rand.New(rand.NewPCG(seed, 13))
	damaged, lost := 0, 0
	for round := range rounds {
		if round%4 == 0 { // something to be lost
			n.serves(t)
			must(t, n.ctlError(t, "batch", "-W", "--wrap=true"))
			n.lastEnded(t)
		}
		before := n.ps(t, "--all")
		n.kill9(t)
		path := filepath.Join(n.run, "volatile.journal")
		if rng.IntN(4) == 0 {
			path = n.path("spool", "durable.journal")
		}
		what := corrupt(t, rng, path)
		n.boot(t)
		doc, after := n.status(t), make(map[string]stepDoc)
		for _, s := range n.ps(t, "--all") {
			after[s.id()] = s
		}
		if now := after[step.id()]; now.State != "RUNNING" || now.StepdPID != step.StepdPID {
			t.Errorf("round %d, %s: the step: %+v", round, what, now)
		}
		drained := strings.Contains(doc.Reason, "the state ")
		for _, was := range before {
			if now := after[was.id()]; !reflect.DeepEqual(now, was) && was.id() != step.id() {
				lost++
				if !drained {
					t.Errorf("round %d, %s: step %s was %+v and is %+v, and the node is %s %q", round, what, was.id(), was, now, doc.State, doc.Reason)
				}
			}
		}
		if drained {
			damaged++
			must(t, n.ctlErrorRoot(t, "node", "resume"))
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d of %d corruptions drained the node; %d records were lost or changed", damaged, rounds, lost)
	if damaged < rounds/2 || lost == 0 {
		t.Errorf("%d of %d corruptions were noticed, with %d records lost", damaged, rounds, lost)
	}
	newest := n.last(t).JobID
	n.serves(t)
	if now := n.last(t).JobID; now <= newest {
		t.Errorf("job %d comes after job %d", now, newest)
	}
	n.letGo(t)
	if r := p.wait(t); r.code != 3 {
		t.Errorf("the client: %v", r)
	}
	n.idle(t)
	n.checkClean(t)
}

// corrupt changes the file in one way, and returns which.
func corrupt(t *testing.T, rng *rand.Rand, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	from := rng.IntN(len(text))
	piece := text[from:min(from+1+rng.IntN(3000), len(text))]
	var how string
	switch rng.IntN(7) {
	case 0, 1:
		how = "a bit changed"
		text[from] ^= 1 << rng.IntN(8)
	case 2:
		how = "bytes changed"
		for range 1 + rng.IntN(20) {
			text[rng.IntN(len(text))] = byte(rng.IntN(256))
		}
	case 3:
		how = "zeroes"
		clear(piece)
	case 4:
		how = "garbage"
		for i := range piece {
			piece[i] = byte(rng.IntN(256))
		}
	case 5:
		how = "all garbage"
		for i := range text {
			text[i] = byte(rng.IntN(256))
		}
	case 6:
		if rng.IntN(2) == 0 {
			must(t, os.Remove(path))
			return "removed " + path
		}
		how, text = "emptied", nil
	}
	must(t, os.WriteFile(path, text, 0o600))
	return fmt.Sprintf("%s in %s, at %d, %d bytes", how, path, from, len(piece))
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
	n.resumes(t)
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
