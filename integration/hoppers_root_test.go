package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"stepd/internal/testkit"
)

// TestRootHoppers: processes that fork and end as fast as they can, each an orphan of which stepd has
// to wait for, take no process from another user's step. Their zombies stay within the step's limit
// and are reaped as long as they come; the step ends soon after KillWait.
func TestRootHoppers(t *testing.T) {
	const hoppers, limit = 150, 400
	n := startNode(t, site{Slurm: "KillWait=1\n", Stepd: fmt.Sprintf("StepProcessesPercent=%.4f\n", (limit+0.5)*100/float64(machineProcesses(t)))})
	program := n.path("hoppers")
	compile(t, "testdata/tasks/hoppers.c", "-o", program)
	p := n.start(t, call{args: []string{"run", program, strconv.Itoa(hoppers)}})
	doc := n.running(t)
	eventually(t, callTimeout, "the hoppers", func() error {
		if all := n.inStep(); all < hoppers/2 {
			return fmt.Errorf("%d processes", all)
		}
		return nil
	})
	most, slowest, reaped := 0, time.Duration(0), cpuOfChildren(t, doc.StepdPID)
	for range 10 {
		most = max(most, zombiesOf(doc.StepdPID))
		began := time.Now()
		if r := n.do(t, call{args: []string{"run", "-n4", "echo", "ran"}, uid: bob.uid}); r.out != strings.Repeat("ran\n", 4) || r.err != "" {
			t.Errorf("another user: %v", r)
		}
		slowest = max(slowest, time.Since(began))
	}
	if reaped = cpuOfChildren(t, doc.StepdPID) - reaped; reaped <= 0 {
		t.Error("stepd has waited for no process meanwhile")
	}
	if most > limit {
		t.Errorf("%d zombies: the limit of the step's processes is %d", most, limit)
	}
	began := time.Now()
	ok(t, "cancel", n.ctl(t, "cancel", doc.id()))
	if r := p.wait(t); r.code != 137 {
		t.Errorf("run: %v", r)
	}
	killed, ended := n.killTimes(t, doc.id())
	t.Logf("%d zombies at most; another user's step of 4 tasks in %v at most; SIGKILL %v after the cancel, the step's end %v after it",
		most, slowest, killed.Sub(began), ended.Sub(began))
	// KillWait and 2 s.
	if took, want := ended.Sub(began), 3*time.Second*time.Duration(testkit.Slower()); took > want {
		t.Errorf("the step's end was %v after the cancel, want at most %v", took, want)
	}
	n.checkClean(t)
	n.serves(t)
}

// zombiesOf counts the children of a process that have ended and were not waited for.
func zombiesOf(pid int) (count int) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range threads {
		b, _ := os.ReadFile(path) // a thread that has ended has none
		for field := range strings.FieldsSeq(string(b)) {
			stat, _ := os.ReadFile("/proc/" + field + "/stat") // it was waited for meanwhile
			if _, state, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(state, "Z") {
				count++
			}
		}
	}
	return count
}

// cpuOfChildren is the CPU time, in clock ticks, of the children that a process has waited for.
func cpuOfChildren(t *testing.T, pid int) (ticks int) {
	t.Helper()
	stat := readFile(t, fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(stat, ") ")
	fields := strings.Fields(rest) // from the third field of proc_pid_stat(5) on
	for _, field := range fields[13:15] {
		n, err := strconv.Atoi(field)
		must(t, err)
		ticks += n
	}
	return ticks
}
