package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// bomb forks without end, as far as the limit lets it: the machine has to live.
// It ignores SIGTERM.
const bomb = `
trap '' TERM
ulimit -u 400
b() { while :; do b & done 2>/dev/null; }
echo ready
b; b; wait
`

// stopped are processes that have stopped themselves, in sessions of their own.
const stopped = `
for i in 1 2 3 4 5 6 7 8; do setsid sh -c 'trap "" TERM; kill -STOP $$; sleep 86398' & done
echo ready
wait
`

// TestRootGone: whatever a step's processes do, after SIGKILL they are gone in
// the time that the kernel needs, and so is all else of the step.
func TestRootGone(t *testing.T) {
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	daemons, tracer, many := n.path("daemons"), n.path("tracer"), testkit.Fewer(5000)
	compile(t, "testdata/tasks/daemons.c", "-o", daemons)
	compile(t, "testdata/tasks/tracer.c", "-o", tracer)
	for _, tc := range []struct {
		name  string
		argv  []string
		least int // processes of the step, at least
		// limit is what the kernel may take from SIGKILL to the step's end, beside others
		// that want the CPUs.
		limit time.Duration
		// toKill and toEnd bound the times from the cancel to SIGKILL and to the step's end, of
		// which KillWait is 1 s; 0 is no bound.
		toKill, toEnd time.Duration
		extra         func(t *testing.T, pid int)
	}{
		{name: "fork bomb", argv: []string{"bash", "-c", bomb}, least: 200, limit: 20 * time.Second, toKill: 2 * time.Second, toEnd: 3 * time.Second},
		{name: "5000 daemons", argv: []string{daemons, strconv.Itoa(many)}, least: many + 1, limit: 20 * time.Second},
		{name: "stopped", argv: []string{"sh", "-c", stopped}, least: 9, limit: 10 * time.Second},
		{name: "frozen", argv: []string{daemons, "20"}, least: 21, limit: 10 * time.Second, extra: freezeStep},
		{
			name: "stopped tracer", least: 3, limit: 10 * time.Second,
			argv: []string{"sh", "-c", "trap '' TERM; sleep 86399 & " + tracer + " $! & t=$!; sleep 0.3; kill -STOP $t; echo ready; wait"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, err := os.CreateTemp(t.TempDir(), "out")
			must(t, err)
			defer out.Close()
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			must(t, err)
			defer null.Close()
			p := n.start(t, call{args: append([]string{"run"}, tc.argv...), files: []*os.File{null, out, out}})
			id := n.running(t).id()
			t.Cleanup(func() { n.ctl(t, "cancel", id) }) // for the next case, where this one fails
			eventually(t, callTimeout, "the processes", func() error {
				if b := readFile(t, out.Name()); !strings.Contains(b, "ready\n") {
					return fmt.Errorf("the task says %q", b)
				}
				if all := n.inStep(); all < tc.least {
					return fmt.Errorf("%d processes", all)
				}
				return nil
			})
			had := n.inStep()
			if tc.extra != nil {
				tc.extra(t, *n.show(t, id).Tasks[0].PID)
			}
			began := time.Now()
			ok(t, "cancel", n.ctl(t, "cancel", id))
			if r := p.wait(t); r.code != 137 && r.code != 143 {
				t.Errorf("run: %v: %s", r, readFile(t, out.Name()))
			}
			n.checkClean(t)
			killed, ended := n.killTimes(t, id)
			took := n.killTime(t, id)
			t.Logf("%d processes: SIGKILL %v after the cancel, the step's end %v after it, %v from one to the other", had, killed.Sub(began), ended.Sub(began), took)
			if limit := tc.limit * time.Duration(testkit.Slower()); took > limit {
				t.Errorf("it took %v from SIGKILL to the step's end, want at most %v", took, limit)
			}
			for _, b := range []struct {
				what string
				took time.Duration
				most time.Duration
			}{{"SIGKILL", killed.Sub(began), tc.toKill}, {"the step's end", ended.Sub(began), tc.toEnd}} {
				if most := b.most * time.Duration(testkit.Slower()); most > 0 && (b.took < time.Second || b.took > most) {
					t.Errorf("%s was %v after the cancel, want 1s (KillWait) to %v", b.what, b.took, most)
				}
			}
		})
	}
	n.serves(t)
}

// inStep counts the processes in the node's cgroups, or of the test user where
// there are none: reading one file, and not each process.
func (n *node) inStep() int {
	count := 0
	for _, dir := range n.cgroups() {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err == nil && strings.Contains(dir, "task") { // else it is gone meanwhile
			count += strings.Count(string(b), "\n")
		}
	}
	return count
}

// freezeStep freezes the tasks behind stepd's back, as root may.
func freezeStep(t *testing.T, pid int) {
	t.Helper()
	for line := range strings.Lines(readFile(t, fmt.Sprintf("/proc/%d/cgroup", pid))) {
		path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
			if err := os.WriteFile(filepath.Join(root, path, "cgroup.freeze"), []byte("1"), 0); err == nil {
				return
			}
		}
	}
	t.Error("the tasks' cgroup cannot be frozen")
}

// killTime is the time from the SIGKILL of a step to its end, by its event log;
// 0 where SIGTERM has ended it.
func (n *node) killTime(t testing.TB, id string) time.Duration {
	t.Helper()
	killed, ended := n.killTimes(t, id)
	if killed.IsZero() {
		return 0
	}
	return ended.Sub(killed)
}

// killTimes are the times of the SIGKILL of a step, zero where SIGTERM has ended it, and of its end,
// by its event log.
func (n *node) killTimes(t testing.TB, id string) (killed, ended time.Time) {
	t.Helper()
	for line := range strings.Lines(n.ctl(t, "events", id).out) {
		var e struct {
			Time   time.Time `json:"time"`
			Event  string    `json:"event"`
			Signal int       `json:"signal"`
		}
		must(t, json.Unmarshal([]byte(line), &e))
		switch {
		case e.Event == "kill" && syscall.Signal(e.Signal) == syscall.SIGKILL && killed.IsZero():
			killed = e.Time
		case e.Event == "end":
			ended = e.Time
		}
	}
	if ended.IsZero() {
		t.Errorf("step %s: no end in its event log", id)
	}
	return killed, ended
}

// footprint is what a noded takes, and what there is of it on the machine.
type footprint struct {
	cgroups, mounts, files, goroutines int
	stateFiles                         int
	anonKB                             int
}

func (n *node) footprint(t testing.TB) footprint {
	t.Helper()
	r := n.ctlRoot(t, "node", "status", "--json")
	var doc struct {
		Node struct {
			Daemon struct {
				PID        int  `json:"pid"`
				Goroutines int  `json:"goroutines"`
				OpenFiles  *int `json:"open_files"`
			} `json:"daemon"`
		} `json:"node"`
	}
	must(t, json.Unmarshal([]byte(r.out), &doc))
	d := doc.Node.Daemon
	if d.PID != n.cmd.Process.Pid || d.OpenFiles == nil {
		t.Fatalf("node status: %+v", d)
	}
	f := footprint{cgroups: len(n.cgroups()), mounts: len(n.mounts()), files: *d.OpenFiles, goroutines: d.Goroutines}
	// Once noded has looked at a process that survives a kill, libcontainer keeps a
	// descriptor of a procfs of its own: its name is "/".
	open, err := n.descriptors()
	must(t, err)
	if open["/"] > 0 {
		f.files--
	}
	// The memory that is noded's own: of the state's pages the kernel may take any back.
	if _, err := fmt.Sscan(statusField(readFile(t, fmt.Sprintf("/proc/%d/status", d.PID)), "RssAnon"), &f.anonKB); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{n.run, filepath.Join(n.run, "steps"), n.path("spool", "results"), n.path("spool", "scripts")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		f.stateFiles += len(entries)
	}
	return f
}

// moreThan reports whether some number of it is larger. The memory is none of them.
func (f footprint) moreThan(before footprint) bool {
	return f.cgroups > before.cgroups || f.mounts > before.mounts || f.files > before.files ||
		f.goroutines > before.goroutines || f.stateFiles > before.stateFiles
}

// descriptors lists what noded has open, and how much of each.
func (n *node) descriptors() (count map[string]int, err error) {
	count = map[string]int{}
	dir := fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid)
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			if !strings.HasPrefix(to, "anon_inode") {
				to, _, _ = strings.Cut(to, ":[") // pipe:[NUMBER]
			}
			count[to]++
		}
	}
	return count, err
}
