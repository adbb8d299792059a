package integration

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The streams of a step of several nodes go over the network, and are what they
// are on one node.

// TestRootClusterOutput: a thousand ranks on four nodes, whose lines come whole, in
// order for each rank, to the last one, with their labels.
func TestRootClusterOutput(t *testing.T) {
	c := startCluster(t, 4, clusterSite{})
	n := c.nodes[0]
	const ranks, lines = 1000, 20
	r := n.do(t, call{limit: 2 * time.Minute, args: []string{"run", "-N4", "-n", strconv.Itoa(ranks), "--overcommit", "-l", "sh", "-c",
		`i=0; while [ $i -lt 20 ]; do echo line $i of $SLURM_PROCID; i=$((i+1)); done; echo err $SLURM_PROCID >&2`}})
	if r.code != 0 {
		t.Fatalf("%d ranks: code %d, %s", ranks, r.code, tail(r.err, 20))
	}
	next := make([]int, ranks)
	for line := range strings.Lines(r.out) {
		var label, i, rank int
		if _, err := fmt.Sscanf(line, "%d: line %d of %d\n", &label, &i, &rank); err != nil || label != rank || rank >= ranks {
			t.Fatalf("a line is %q", line)
		}
		if next[rank] != i {
			t.Fatalf("rank %d wrote line %d, where line %d was to come", rank, i, next[rank])
		}
		next[rank]++
	}
	for rank, got := range next {
		if got != lines {
			t.Errorf("%d lines of rank %d", got, rank)
		}
		if want := fmt.Sprintf("%3d: err %d\n", rank, rank); !strings.Contains(r.err, want) {
			t.Errorf("stderr lacks %q", want)
		}
	}
}

// TestRootClusterBulk: 100 MB come through, byte for byte, and a regular file gets
// them as well as a pipe.
func TestRootClusterBulk(t *testing.T) {
	c := startCluster(t, 2, clusterSite{})
	n := c.nodes[0]
	out := filepath.Join(n.wd, "out")
	f, err := os.Create(out)
	must(t, err)
	defer f.Close()
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	begin := time.Now()
	p := n.start(t, call{limit: 2 * time.Minute, files: []*os.File{null, f, os.Stderr}, args: []string{"run", "-N2", "-n2", "sh", "-c",
		`test $SLURM_PROCID = 0 || exec yes "a line of rank 1, which is on the second node" | head -c 100000000`}})
	if r := p.wait(t); r.code != 0 {
		t.Fatalf("code %d", r.code)
	}
	t.Logf("100 MB in %v", time.Since(begin))
	st, err := os.Stat(out)
	must(t, err)
	b, err := os.ReadFile(out)
	must(t, err)
	line := []byte("a line of rank 1, which is on the second node\n")
	if st.Size() != 100_000_000 || !bytes.Equal(b, bytes.Repeat(line, len(b)/len(line)+1)[:len(b)]) {
		t.Errorf("%d bytes came, or others", st.Size())
	}
}

// TestRootClusterInput: what the client reads goes to all tasks, or to the one that
// it is for.
func TestRootClusterInput(t *testing.T) {
	waits(t)
	c := startCluster(t, 3, clusterSite{})
	n := c.nodes[0]
	text := strings.Repeat("to all of them\n", 20_000)
	r := n.do(t, call{stdin: text, args: []string{"run", "-N3", "-n6", "-l", "wc", "-c"}})
	var want []string
	for rank := range 6 {
		want = append(want, fmt.Sprintf("%d: %d", rank, len(text)))
	}
	got := strings.Split(strings.TrimSpace(r.out), "\n")
	slices.Sort(got)
	if r.code != 0 || !slices.Equal(got, want) {
		t.Errorf("all of them counted %q: %v", got, r)
	}
	r = n.do(t, call{stdin: "to rank 4", args: []string{"run", "-N3", "-n6", "-l", "-i", "4", "cat"}})
	if r.code != 0 || strings.TrimSpace(r.out) != "4: to rank 4" {
		t.Errorf("rank 4 alone: %v", r)
	}
	// Tasks that do not read stop nobody.
	r = n.do(t, call{stdin: text, args: []string{"run", "-N3", "-n3", "true"}})
	if r.code != 0 {
		t.Errorf("tasks that do not read: %v", r)
	}
}

// TestRootClusterStandsStill: a reader that stands still stops the tasks; what waits
// on the way is bounded, and nothing is lost when it reads on. Ctrl-Z of the client
// does not end the step.
func TestRootClusterStandsStill(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{})
	n := c.nodes[0]
	read, write, err := os.Pipe()
	must(t, err)
	defer read.Close()
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	p := n.start(t, call{limit: 2 * time.Minute, files: []*os.File{null, write, os.Stderr}, args: []string{"run", "-N2", "-n4", "sh", "-c",
		`yes | head -c 20000000; echo done > ` + n.wd + `/done.$SLURM_PROCID`}})
	write.Close()
	doc := n.running(t)
	var before uint64
	eventually(t, callTimeout, "rest", func() error {
		now := c.writtenByHeads(t)
		if now == 0 || now != before {
			before = now
			time.Sleep(300 * time.Millisecond)
			return fmt.Errorf("%d bytes were written so far", now)
		}
		return nil
	})
	// Of each node a window and a pipe and what is between for each task, the
	// client's own and the pipe to us.
	if limit := uint64(4*(64<<10+2*(32<<10)) + 3*(256<<10) + 2*(64<<10)); before > limit {
		t.Errorf("%d bytes were written before the tasks stood still, want at most %d", before, limit)
	}
	must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	time.Sleep(time.Second)
	must(t, p.cmd.Process.Signal(syscall.SIGCONT))
	if got, err := io.Copy(io.Discard, read); err != nil || got != 4*20_000_000 {
		t.Errorf("%d bytes came, %v", got, err)
	}
	if r := p.wait(t); r.code != 0 {
		t.Errorf("code %d", r.code)
	}
	if d := n.ended(t, doc.id()); d.State != "COMPLETED" {
		t.Errorf("the step is %+v", d)
	}
}

// writtenByHeads sums what the processes "head" of its steps have written.
func (c *cluster) writtenByHeads(t testing.TB) (sum uint64) {
	t.Helper()
	for _, n := range c.nodes {
		for _, p := range n.processes() {
			if p.comm != "head" || !strings.Contains(p.cgroup, "stepd-"+n.hash()) { // all nodes' environment is alike
				continue
			}
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.pid))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				if v, ok := strings.CutPrefix(line, "wchar: "); ok {
					n, _ := strconv.ParseUint(strings.TrimSpace(v), 10, 64)
					sum += n
				}
			}
		}
	}
	return sum
}

// TestRootClusterSignals: what the client's user sends reaches the tasks of all
// nodes, and Ctrl-C twice ends them.
func TestRootClusterSignals(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{})
	n := c.nodes[0]
	p := n.start(t, call{args: []string{"run", "-N2", "-n4", "sh", "-c", `trap 'echo usr1 $SLURM_PROCID; exit 3' USR1; : >trap.$SLURM_PROCID; while :; do sleep 0.05; done`}})
	n.running(t)
	for rank := range 4 {
		awaitFile(t, filepath.Join(n.wd, fmt.Sprint("trap.", rank)))
	}
	signalClient(t, p, unix.SIGUSR1)
	r := p.wait(t)
	for rank := range 4 {
		contains(t, "stdout", r.out, fmt.Sprintf("usr1 %d\n", rank))
	}
	if r.code != 3 {
		t.Errorf("after SIGUSR1: %v", r)
	}
	contains(t, "stderr", r.err, "stepctl: error: n1: ", "stepctl: error: n2: ")

	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	errs, err := os.Create(filepath.Join(n.wd, "errs"))
	must(t, err)
	defer errs.Close()
	p = n.start(t, call{args: []string{"run", "-N2", "-n4", "sleep", "100"}, files: []*os.File{null, null, errs}})
	n.running(t)
	// Two that come at once are one, and two that are more than a second apart are no pair:
	// each is answered before the next one.
	const once, pair = "one more within", "sending Ctrl-C to StepId="
	eventually(t, callTimeout, "two within a second", func() error {
		before := strings.Count(readFile(t, errs.Name()), once)
		signalClient(t, p, unix.SIGINT)
		var text string
		eventually(t, callTimeout, "its words", func() error {
			if text = readFile(t, errs.Name()); strings.Count(text, once) == before && !strings.Contains(text, pair) {
				return fmt.Errorf("stderr: %q", text)
			}
			return nil
		})
		if !strings.Contains(text, pair) {
			return fmt.Errorf("stderr: %q", text)
		}
		return nil
	})
	if r = p.wait(t); r.code != 130 {
		t.Errorf("after two Ctrl-C: %v", r)
	}
	contains(t, "stderr", readFile(t, errs.Name()), once, "tasks 0-3: ") // they may be starting for the client
}

// signalClient signals stepctl itself, which may run below nsenter.
func signalClient(t testing.TB, p *process, sig syscall.Signal) {
	t.Helper()
	must(t, p.cmd.Process.Signal(sig)) // nsenter and setpriv exec
}

// TestRootClusterClientKilled: after kill -9 of the client the tasks write into a
// pipe that nobody reads, as on one node.
func TestRootClusterClientKilled(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{})
	n := c.nodes[0]
	p := n.start(t, call{args: []string{"run", "-N2", "-n2", "sh", "-c", `trap '' PIPE; : >trap.$SLURM_PROCID; while echo x; do sleep 0.05; done; echo gone > ` + n.wd + `/gone.$SLURM_PROCID`}})
	doc := n.running(t)
	for rank := range 2 {
		awaitFile(t, filepath.Join(n.wd, fmt.Sprint("trap.", rank)))
	}
	must(t, p.cmd.Process.Kill())
	p.cmd.Wait()
	p.cancel()
	eventually(t, callTimeout, "the end of the step", func() error {
		if d := n.show(t, doc.id()); d.State != "COMPLETED" && d.State != "FAILED" {
			return fmt.Errorf("it is %s", d.State)
		}
		return nil
	})
	for rank := range 2 {
		if _, err := os.Stat(fmt.Sprintf("%s/gone.%d", n.wd, rank)); err != nil {
			t.Errorf("rank %d did not see that nobody reads: %v", rank, err)
		}
	}
}

// TestRootClusterStepdKilled: kill -9 of one node's stepd ends the step on all of
// them, and the client is told which one it was.
func TestRootClusterStepdKilled(t *testing.T) {
	waits(t)
	c := startCluster(t, 3, clusterSite{})
	n := c.nodes[0]
	for victim, name := range []string{"n1", "n2", "n3"} {
		p := n.start(t, call{args: []string{"run", "-N3", "-n6", "sh", "-c", "echo up; exec sleep 100"}})
		doc := n.running(t)
		must(t, syscall.Kill(stepdOf(t, n, doc.id(), 2*victim), syscall.SIGKILL))
		r := p.wait(t)
		if r.code == 0 {
			t.Errorf("%s: %v", name, r)
		}
		contains(t, "stderr", r.err, name)
		d := n.ended(t, doc.id())
		if d.State == "COMPLETED" || d.State == "RUNNING" || !strings.Contains(d.Reason, name) {
			t.Errorf("%s: the step is %s: %q", name, d.State, d.Reason)
		}
	}
}

// stepdOf is the stepd of a task: the parent of its parent, which is spankhost.
func stepdOf(t testing.TB, n *node, id string, rank int) int {
	t.Helper()
	pid := 0
	eventually(t, callTimeout, "the task's pid", func() error {
		d := n.show(t, id)
		if rank >= len(d.Tasks) || d.Tasks[rank].PID == nil {
			return fmt.Errorf("task %d of %+v", rank, d.Tasks)
		}
		pid = *d.Tasks[rank].PID
		return nil
	})
	for range 2 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		must(t, err)
		fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
		pid, err = strconv.Atoi(fields[1])
		must(t, err)
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	must(t, err)
	if strings.TrimSpace(string(comm)) != "stepd" {
		t.Fatalf("process %d, above task %d, is %q", pid, rank, comm)
	}
	return pid
}

// TestRootClusterUnread: where nobody reads the client's stdout any more, the tasks hear
// of it; their stderr, and the client's signals, go on.
func TestRootClusterUnread(t *testing.T) {
	waits(t)
	c := startCluster(t, 2, clusterSite{})
	n := c.nodes[0]
	r, w, err := os.Pipe()
	must(t, err)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	must(t, err)
	defer null.Close()
	errs, err := os.Create(filepath.Join(n.wd, "errs"))
	must(t, err)
	defer errs.Close()
	p := n.start(t, call{files: []*os.File{null, w, errs}, args: []string{"run", "-N2", "-n2", "sh", "-c",
		`trap "" PIPE; trap 'exit 9' USR1; while echo on 2>/dev/null; do sleep 0.05; done; echo "late $SLURM_PROCID" >&2; while :; do sleep 0.1; done`}})
	w.Close()
	_, err = io.ReadFull(r, make([]byte, 2))
	must(t, err)
	r.Close()
	eventually(t, callTimeout, "the tasks' words on stderr", func() error {
		if b := readFile(t, errs.Name()); !strings.Contains(b, "late 0\n") || !strings.Contains(b, "late 1\n") {
			return fmt.Errorf("stderr: %q", b)
		}
		return nil
	})
	must(t, p.cmd.Process.Signal(syscall.SIGUSR1))
	if r := p.wait(t); r.code != 9 {
		t.Errorf("got %v: %s", r, readFile(t, errs.Name()))
	}
}
