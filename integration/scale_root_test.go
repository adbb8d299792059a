package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// cost is what noded holds.
type cost struct {
	fds   int
	rssKB int
}

func (n *node) cost(t testing.TB) cost {
	t.Helper()
	pid := n.cmd.Process.Pid
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	must(t, err)
	field := strings.Fields(statusField(readFile(t, fmt.Sprintf("/proc/%d/status", pid)), "VmRSS"))
	rss, err := strconv.Atoi(field[0])
	must(t, err)
	return cost{len(fds), rss}
}

// TestRootManySteps: 50 steps one after another and 8 at a time leave noded
// as it was.
func TestRootManySteps(t *testing.T) {
	n := startNode(t, site{})
	for range 5 { // what is opened once
		n.serves(t)
	}
	n.checkClean(t)
	before := n.cost(t)
	for i := range 50 {
		if r := n.ctl(t, "run", "sh", "-c", "exit "+strconv.Itoa(i%2)); r.code != i%2 {
			t.Fatalf("step %d: %v", i, r)
		}
	}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 6 {
				// not t.Fatal: this is not the test's goroutine
				if r := n.do(t, call{args: []string{"run", "-n", "2", "sh", "-c", "echo out; exit " + strconv.Itoa(worker)}}); r.code != worker || r.out != "out\nout\n" {
					t.Errorf("worker %d, step %d: %v", worker, i, r)
				}
			}
		}()
	}
	wg.Wait()
	n.checkClean(t)
	eventually(t, goneWithin, "as many descriptors as before", func() error {
		if after := n.cost(t); after.fds > before.fds {
			return fmt.Errorf("noded holds %d descriptors, before it held %d", after.fds, before.fds)
		}
		return nil
	})
	if after := n.cost(t); after.rssKB > before.rssKB+30<<10 {
		t.Errorf("noded's memory went from %d to %d KiB in 98 steps", before.rssKB, after.rssKB)
	}
	if steps := n.ps(t, "--all"); len(steps) != 5+50+48 {
		t.Errorf("ps --all shows %d steps, want 103", len(steps))
	}
}

// TestRootThousandTasks: one step of a thousand tasks, with and without
// output, and what is left after it.
func TestRootThousandTasks(t *testing.T) {
	n := startNode(t, site{Slurm: "MaxTasksPerNode=1000\n"})
	started := time.Now()
	if r := n.ctl(t, "run", "-n", "1000", "--overcommit", "/bin/true"); r.code != 0 || r.err != "" {
		t.Errorf("got %v", r)
	}
	t.Logf("1000 tasks of /bin/true: %v", time.Since(started))
	n.checkClean(t)
	if doc := n.lastEnded(t); doc.NTasks != 1000 || len(doc.Tasks) != 1000 || doc.State != "COMPLETED" {
		t.Errorf("record: ntasks %d, %d tasks, state %s", doc.NTasks, len(doc.Tasks), doc.State)
	}
	r := n.ctl(t, "run", "-n", "1000", "--overcommit", "-l", "sh", "-c", "echo $SLURM_PROCID; exit $((SLURM_PROCID == 999 ? 9 : 0))")
	seen := map[string]bool{}
	for _, line := range strings.Split(strings.TrimSpace(r.out), "\n") {
		label, text, _ := strings.Cut(line, ": ")
		if strings.TrimLeft(label, " 0") == strings.TrimLeft(text, "0") {
			seen[text] = true
		}
	}
	if r.code != 9 || len(seen) != 1000 {
		t.Errorf("exit code %d, want 9; %d of 1000 labelled lines; stderr %q", r.code, len(seen), r.err)
	}
	n.checkClean(t)
}
