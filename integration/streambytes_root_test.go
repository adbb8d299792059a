package integration

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
)

// streamBytes is what each of a thousand ranks writes; 1000000 takes half a minute.
var streamBytes = flag.Int("stream-bytes", 50_000, "bytes that each of 1,000 ranks writes")

// noise writes n bytes that are no text to a file that the test user may read.
func noise(t *testing.T, n *node, name string, size int) (path string, data []byte) {
	t.Helper()
	data = make([]byte, size)
	rand.NewChaCha8([32]byte{1}).Read(data)
	return n.userFile(t, name, string(data), 0o644), data
}

// pipeFor is a pipe that stays ours to read and to close.
func pipeFor(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// TestRootNoByteIsLost: for every kind of reader, however slow.
func TestRootNoByteIsLost(t *testing.T) {
	n := startNode(t, site{Slurm: "MaxTasksPerNode=1000\n"})
	null, err := os.Open("/dev/null")
	must(t, err)
	defer null.Close()
	t.Run("a thousand ranks at once", func(t *testing.T) { n.thousandRanks(t) })
	binary, data := noise(t, n, "binary", 300_000)
	t.Run("a reader of one byte at a time, binary data", func(t *testing.T) {
		r, w := pipeFor(t)
		// Not one rank alone: that would have the pipe itself.
		p := n.start(t, call{args: []string{"run", "-n", "2", "sh", "-c", "test $SLURM_PROCID = 1 || cat " + binary}, files: []*os.File{null, w, os.Stderr}})
		w.Close()
		got, one := make([]byte, 0, len(data)), make([]byte, 1)
		for {
			if _, err := r.Read(one); err != nil {
				break
			}
			got = append(got, one[0])
		}
		if res := p.wait(t); res.code != 0 || !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d, %v", len(got), len(data), res)
		}
	})
	t.Run("a socket", func(t *testing.T) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		must(t, err)
		ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
		defer ours.Close()
		p := n.start(t, call{args: []string{"run", "cat", binary}, files: []*os.File{null, theirs, os.Stderr}})
		theirs.Close()
		got, _ := io.ReadAll(ours)
		if res := p.wait(t); res.code != 0 || sha256.Sum256(got) != sha256.Sum256(data) {
			t.Errorf("%d bytes of %d, %v", len(got), len(data), res)
		}
		if doc := n.lastBytes(t); doc.Stdout == nil || *doc.Stdout != int64(len(data)) || doc.Stderr != nil && *doc.Stderr != 0 {
			t.Errorf("the record counts %v and %v bytes of %d", doc.Stdout, doc.Stderr, len(data))
		}
	})
	t.Run("another user's", func(t *testing.T) {
		r := n.do(t, call{root: true, args: []string{"run", "--uid", alice.name, "cat", binary}})
		if r.code != 0 || r.out != string(data) {
			t.Errorf("%d bytes of %d, exit code %d, %q", len(r.out), len(data), r.code, r.err)
		}
	})
	t.Run("a client that stands still", func(t *testing.T) { n.stoppedClient(t, null) })
	t.Run("a client that is killed", func(t *testing.T) { n.killedClient(t, null) })
	t.Run("handed over, nobody counts", func(t *testing.T) {
		if r := n.ctl(t, "run", "echo", "x"); r.out != "x\n" {
			t.Errorf("got %v", r)
		}
		if doc := n.lastBytes(t); doc.Stdout != nil {
			t.Errorf("the record counts %d bytes of a pipe that is the task's", *doc.Stdout)
		}
	})
	n.checkClean(t)
}

// byteCounts are what a record says of the streams.
type byteCounts struct {
	Stdout *int64 `json:"stdout_bytes"`
	Stderr *int64 `json:"stderr_bytes"`
}

func (n *node) lastBytes(t *testing.T) byteCounts {
	t.Helper()
	var doc struct {
		Step byteCounts `json:"step"`
	}
	must(t, json.Unmarshal([]byte(n.ctl(t, "show", n.lastEnded(t).id(), "--json").out), &doc))
	return doc.Step
}

// thousandRanks write to a pipe, labelled, so that each line reports whose it is.
func (n *node) thousandRanks(t *testing.T) {
	ranks := testkit.Fewer(1000)
	lines := *streamBytes / 100
	r, w := pipeFor(t)
	null, err := os.Open("/dev/null")
	must(t, err)
	defer null.Close()
	script := fmt.Sprintf(`yes "$SLURM_PROCID %s" | head -c %d`, strings.Repeat("x", 90), *streamBytes)
	p := n.start(t, call{args: []string{"run", "-n", fmt.Sprint(ranks), "-O", "-l", "sh", "-c", script}, files: []*os.File{null, w, os.Stderr}, limit: 5 * time.Minute})
	w.Close()
	got, bytes := make([]int, ranks), make([]int, ranks)
	scan := bufio.NewScanner(r)
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		label, text, _ := strings.Cut(strings.TrimLeft(scan.Text(), " "), ": ")
		own, rest, _ := strings.Cut(text, " ")
		var rank int
		if _, err := fmt.Sscan(label, &rank); err != nil || rank >= ranks || label != own && len(text) >= len(label) {
			t.Fatalf("line %q is cut", scan.Text())
		}
		got[rank]++
		bytes[rank] += len(text) + 1
		if strings.Trim(rest, "x") != "" {
			t.Fatalf("line %q holds what rank %d did not write", scan.Text(), rank)
		}
	}
	if res := p.wait(t); res.code != 0 {
		t.Errorf("%v", res)
	}
	for rank := range ranks {
		// The last line has no end of its own: one is added, unless it had just ended.
		if bytes[rank] != *streamBytes && bytes[rank] != *streamBytes+1 {
			t.Fatalf("rank %d: %d bytes in %d lines, want %d bytes in about %d", rank, bytes[rank], got[rank], *streamBytes, lines)
		}
	}
	if doc := n.lastBytes(t); doc.Stdout == nil || *doc.Stdout != int64(ranks)*int64(*streamBytes) {
		t.Errorf("the record counts %v bytes, want %d", doc.Stdout, ranks**streamBytes)
	}
}

// stoppedClient: the step ends without its client, which has all of it later.
func (n *node) stoppedClient(t *testing.T, null *os.File) {
	gates := []string{filepath.Join(n.wd, "go.0"), filepath.Join(n.wd, "go.1")}
	for _, g := range gates {
		must(t, unix.Mkfifo(g, 0o666))
		must(t, os.Chmod(g, 0o666))
	}
	r, w := pipeFor(t)
	p := n.start(t, call{args: []string{"run", "-n", "2", "-l", "sh", "-c", "echo begin; read line < go.$SLURM_PROCID; head -c 60000 /dev/zero | tr '\\0' x; echo"}, files: []*os.File{null, w, os.Stderr}})
	w.Close()
	in := bufio.NewReader(r)
	for range gates {
		_, err := in.ReadString('\n')
		must(t, err)
	}
	id := n.running(t).id()
	must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	for _, g := range gates {
		must(t, os.WriteFile(g, []byte("\n"), 0))
	}
	eventually(t, callTimeout, "the end of the step", func() error {
		if s := n.show(t, id); s.State != "COMPLETED" {
			return fmt.Errorf("%s, its client stands still", s.State)
		}
		return nil
	})
	must(t, p.cmd.Process.Signal(syscall.SIGCONT))
	rest, _ := io.ReadAll(in)
	if res := p.wait(t); res.code != 0 || strings.Count(string(rest), "x") != 120000 {
		t.Errorf("%d bytes, %v", len(rest), res)
	}
}

// killedClient: what was read is whole lines, the tasks get SIGPIPE, as from any pipe.
func (n *node) killedClient(t *testing.T, null *os.File) {
	r, w := pipeFor(t)
	p := n.start(t, call{args: []string{"run", "-n", "2", "-l", "yes", "a line"}, files: []*os.File{null, w, null}})
	w.Close()
	in := bufio.NewReader(r)
	for range 1000 {
		line, err := in.ReadString('\n')
		if err != nil || line != "0: a line\n" && line != "1: a line\n" {
			t.Fatalf("%q, %v", line, err)
		}
	}
	id := n.running(t).id()
	eventually(t, callTimeout, "both tasks", func() error { // before, its client's end is the step's
		for _, task := range n.show(t, id).Tasks {
			if task.State != "RUNNING" {
				return fmt.Errorf("rank %d is %s", task.Rank, task.State)
			}
		}
		return nil
	})
	must(t, p.cmd.Process.Kill())
	p.wait(t)
	eventually(t, callTimeout, "the end of the step", func() error {
		if s := n.show(t, id); s.State != "FAILED" || !strings.Contains(s.Reason, "Broken pipe") {
			return fmt.Errorf("%s: %s", s.State, s.Reason)
		}
		return nil
	})
}
