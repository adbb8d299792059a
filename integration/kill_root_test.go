package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// stubborn is a task with children that try to outlive it: one in a session
// of its own, one double-forked, one that ignores what it can. It waits for
// the file "go" and exits with 3.
const stubborn = `
setsid sleep 86400 </dev/null >/dev/null 2>&1 &
(setsid sh -c 'trap "" TERM HUP INT; sleep 86400 </dev/null >/dev/null 2>&1 &' &)
touch up.$SLURM_PROCID
while ! test -e go; do sleep 0.05; done
exit 3
`

// startStubborn starts a step of two such tasks and waits until all is up.
func startStubborn(t *testing.T, n *node, options ...string) (*process, stepDoc) {
	t.Helper()
	for _, name := range []string{"go", "up.0", "up.1"} {
		if err := os.Remove(filepath.Join(n.wd, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	name := fmt.Sprintf("stubborn%d", stepNames.Add(1))
	p := n.start(t, call{args: slices.Concat([]string{"run", "-n", "2", "-J", name}, options, []string{"sh", "-c", stubborn})})
	step := n.runs(t, name)
	eventually(t, callTimeout, "the tasks' daemons", func() error {
		for _, name := range []string{"up.0", "up.1"} {
			if _, err := os.Stat(filepath.Join(n.wd, name)); err != nil {
				return err
			}
		}
		sleeps := 0
		for _, pr := range n.processes() {
			if strings.HasPrefix(pr.cmdline, "sleep 86400") {
				sleeps++
			}
		}
		if sleeps != 4 {
			return fmt.Errorf("%d of 4 daemons", sleeps)
		}
		return nil
	})
	return p, n.show(t, step.id())
}

// letGo makes the stubborn tasks exit with 3.
func (n *node) letGo(t testing.TB) {
	t.Helper()
	n.userFile(t, "go", "", 0o644)
}

// serves checks that the node takes the next step as if nothing had been.
func (n *node) serves(t testing.TB) {
	t.Helper()
	if r := n.ctl(t, "run", "echo", "next"); r.code != 0 || r.out != "next\n" || r.err != "" {
		t.Errorf("the next step: %v", r)
	}
}

// ended waits for the final record of a step.
func (n *node) ended(t testing.TB, id string) stepDoc {
	t.Helper()
	var doc stepDoc
	eventually(t, callTimeout, "the final record of "+id, func() error {
		if doc = n.show(t, id); doc.End == nil {
			return fmt.Errorf("state %s, no end_time", doc.State)
		}
		return nil
	})
	return doc
}

// lastEnded is the final record of the newest step: the client gets the
// end from stepd itself, at the same time as noded.
func (n *node) lastEnded(t testing.TB) stepDoc {
	t.Helper()
	return n.ended(t, n.last(t).id())
}

// TestRootKillStepd: with stepd all of the step goes, and the result says so.
func TestRootKillStepd(t *testing.T) {
	n := startNode(t, site{})
	p, step := startStubborn(t, n)
	stepd := n.findProcess(t, "stepd")
	if !strings.HasPrefix(stepd.cmdline, fmt.Sprintf("stepd: [%s]", step.id())) {
		t.Errorf("command line of stepd: %q, want \"stepd: [%s]\"", stepd.cmdline, step.id())
	}
	must(t, killNow(stepd.pid))
	n.checkClean(t)
	if r := p.wait(t); r.code != 1 {
		t.Errorf("run: want exit code 1, got %v", r)
	} else {
		contains(t, "stderr", r.err, "stepctl: error: ")
	}
	doc := n.ended(t, step.id())
	if doc.State != "FAILED" {
		t.Errorf("state %s, want FAILED", doc.State)
	}
	contains(t, "reason", doc.Reason, "stepd", "SIGKILL")
	n.serves(t)
}

// TestRootStepdCrashes: the reason has the first line of a stepd's crash, and noded's log its text.
func TestRootStepdCrashes(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	p, step := startStubborn(t, n)
	must(t, syscall.Kill(n.findProcess(t, "stepd").pid, syscall.SIGABRT))
	n.checkClean(t)
	if r := p.wait(t); r.code != 1 {
		t.Errorf("run: %v", r)
	}
	contains(t, "reason", n.ended(t, step.id()).Reason, "exited with code 2 and left no result: SIGABRT: abort")
	contains(t, "log", n.wholeLog(t), "SIGABRT: abort\nPC=", "\ngoroutine ")
	n.serves(t)
}

// TestRootKillHost: with the host its tasks go, and stepd says who was killed.
func TestRootKillHost(t *testing.T) {
	n := startNode(t, site{})
	p, step := startStubborn(t, n)
	host := n.findProcess(t, "spankhost")
	if !strings.Contains(host.cmdline, "["+step.id()+"]") {
		t.Errorf("command line of spankhost: %q, want [%s] in it", host.cmdline, step.id())
	}
	must(t, killNow(host.pid))
	n.checkClean(t)
	if r := p.wait(t); r.code != 1 {
		t.Errorf("run: want exit code 1, got %v", r)
	}
	doc := n.ended(t, step.id())
	if doc.State != "FAILED" {
		t.Errorf("state %s, want FAILED", doc.State)
	}
	contains(t, "reason", doc.Reason, "spankhost", "SIGKILL")
	n.serves(t)
}

// TestRootKillNoded: a step survives its noded, is found again, and its
// result is stored, whether it ends after the restart or before.
func TestRootKillNoded(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	t.Run("the step ends after the restart", func(t *testing.T) {
		p, step := startStubborn(t, n)
		n.kill9(t)
		n.boot(t)
		steps := n.ps(t)
		if len(steps) != 1 || steps[0].id() != step.id() || steps[0].State != "RUNNING" {
			t.Fatalf("after the restart ps shows %+v, want %s RUNNING", steps, step.id())
		}
		n.letGo(t)
		if r := p.wait(t); r.code != 3 {
			t.Errorf("run: want exit code 3, got %v", r)
		}
		if doc := n.ended(t, step.id()); doc.ExitCode == nil || *doc.ExitCode != 3 || doc.State != "FAILED" {
			t.Errorf("record: %+v", doc)
		}
		n.checkClean(t)
	})
	t.Run("the step ends while no noded is there", func(t *testing.T) {
		p, step := startStubborn(t, n)
		n.kill9(t)
		n.letGo(t)
		if r := p.wait(t); r.code != 3 {
			t.Errorf("run: want exit code 3 from stepd itself, got %v", r)
		}
		eventually(t, callTimeout, "the end of all processes", func() error {
			if left := n.processes(); len(left) > 0 {
				return fmt.Errorf("%v", left)
			}
			return nil
		})
		n.boot(t)
		if doc := n.ended(t, step.id()); doc.ExitCode == nil || *doc.ExitCode != 3 || doc.State != "FAILED" || len(doc.Tasks) != 2 {
			t.Errorf("record after the restart: %+v", doc)
		}
		n.checkClean(t)
	})
	t.Run("an adopted step is cancelled", func(t *testing.T) {
		p, step := startStubborn(t, n)
		n.kill9(t)
		n.boot(t)
		if r := n.ctl(t, "cancel", step.id()); r.code != 0 {
			t.Errorf("cancel: %v", r)
		}
		if r := p.wait(t); r.code != 143 && r.code != 137 {
			t.Errorf("run: want 143 or 137, got %v", r)
		}
		n.checkClean(t)
	})
	t.Run("an adopted step loses its stepd", func(t *testing.T) {
		p, step := startStubborn(t, n)
		n.kill9(t)
		n.boot(t)
		must(t, killNow(n.findProcess(t, "stepd").pid))
		n.checkClean(t)
		if r := p.wait(t); r.code != 1 {
			t.Errorf("run: want exit code 1, got %v", r)
		}
		if doc := n.ended(t, step.id()); doc.State != "FAILED" || !strings.Contains(doc.Reason, "stepd") {
			t.Errorf("record: %+v", doc)
		}
	})
	t.Run("noded and stepd are both killed", func(t *testing.T) {
		p, step := startStubborn(t, n)
		stepd := n.findProcess(t, "stepd")
		n.kill9(t)
		must(t, killNow(stepd.pid))
		n.boot(t)
		n.checkClean(t)
		if r := p.wait(t); r.code != 1 {
			t.Errorf("run: want exit code 1, got %v", r)
		}
		if doc := n.ended(t, step.id()); doc.State != "FAILED" || !strings.Contains(doc.Reason, "stepd") {
			t.Errorf("record: %+v", doc)
		}
	})
	t.Run("noded and spankhost are both killed", func(t *testing.T) {
		p, step := startStubborn(t, n)
		host := n.findProcess(t, "spankhost")
		n.kill9(t)
		must(t, killNow(host.pid))
		if r := p.wait(t); r.code != 1 {
			t.Errorf("run: want exit code 1, got %v", r)
		}
		n.boot(t)
		n.checkClean(t)
		if doc := n.ended(t, step.id()); doc.State != "FAILED" || !strings.Contains(doc.Reason, "spankhost") {
			t.Errorf("record: %+v", doc)
		}
	})
	t.Run("numbers go on", func(t *testing.T) {
		before := n.last(t).JobID
		n.serves(t)
		if after := n.last(t).JobID; after != before+1 {
			t.Errorf("job %d after job %d", after, before)
		}
	})
}

// TestRootTermNoded: SIGTERM ends noded with 0 and leaves the step alone.
func TestRootTermNoded(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	p, step := startStubborn(t, n)
	must(t, n.cmd.Process.Signal(syscall.SIGTERM))
	<-n.done
	if code := n.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("noded: exit code %d, want 0", code)
	}
	if left := n.processes(); len(left) < 8 {
		t.Errorf("stepd, spankhost, 2 tasks and 4 daemons go on; there are %v", left)
	}
	n.boot(t)
	n.letGo(t)
	if r := p.wait(t); r.code != 3 {
		t.Errorf("run: want exit code 3, got %v", r)
	}
	if doc := n.ended(t, step.id()); doc.ExitCode == nil || *doc.ExitCode != 3 {
		t.Errorf("record: %+v", doc)
	}
}

// victim returns the pid of stepd, or of the host itself: before their exec
// its task children carry its name too.
func (n *node) victim(t testing.TB, comm string) int {
	t.Helper()
	byPID := map[int]bool{}
	var found []proc
	for _, p := range n.processes() {
		if p.comm == comm {
			found = append(found, p)
			byPID[p.pid] = true
		}
	}
	for _, p := range found {
		status := readFile(t, fmt.Sprintf("/proc/%d/status", p.pid))
		var parent int
		if _, err := fmt.Sscan(statusField(status, "PPid"), &parent); err == nil && !byPID[parent] {
			return p.pid
		}
	}
	t.Fatalf("no process %q among %v", comm, n.processes())
	return 0
}

// TestRootTermRightAfterEnd: the client gets a step's end before noded has
// put everything away; a SIGTERM in between changes nothing.
func TestRootTermRightAfterEnd(t *testing.T) {
	n := startNode(t, site{})
	for range 5 {
		if r := n.ctl(t, "run", "true"); r.code != 0 {
			t.Fatal(r)
		}
		must(t, n.cmd.Process.Signal(syscall.SIGTERM))
		<-n.done
		n.checkClean(t)
		if err := n.cgroupRootGone(); err != nil {
			t.Error(err)
		}
		n.boot(t)
	}
}

// TestRootHostStoppedBetween: a host that is stopped between hooks, and tells nothing of the tasks'
// ends, is killed within UnkillableStepTimeout; their codes are known all the same. One that goes
// on in time changes nothing.
func TestRootHostStoppedBetween(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "UnkillableStepTimeout=2\n"})
	for _, goesOn := range []bool{false, true} {
		p := n.start(t, call{args: []string{"run", "-J", "still", "sh", "-c", "until test -e go; do sleep 0.1; done; exit 7"}})
		doc := n.runs(t, "still")
		host := n.victim(t, "spankhost")
		must(t, syscall.Kill(host, syscall.SIGSTOP))
		eventually(t, callTimeout, "a stopped host", func() error { return standsStill(host) })
		if goesOn {
			must(t, syscall.Kill(host, syscall.SIGCONT))
		}
		must(t, os.WriteFile(filepath.Join(n.wd, "go"), nil, 0o644))
		r := p.wait(t)
		doc = n.ended(t, doc.id())
		task := doc.Tasks[0]
		if doc.State != "FAILED" || task.State != "EXITED" || task.ExitCode == nil || *task.ExitCode != 7 {
			t.Errorf("run: %v; record %+v", r, doc)
		}
		want := fmt.Sprintf("spankhost (pid %d): was stopped, and did not go on within 2s (UnkillableStepTimeout in slurm.conf)", host)
		if named := strings.Contains(doc.Reason, want); named == goesOn {
			t.Errorf("goes on: %v; reason %q", goesOn, doc.Reason)
		}
		n.checkClean(t)
		must(t, os.Remove(filepath.Join(n.wd, "go")))
	}
	n.serves(t)
}

// TestRootHostStopped: a stopped host does not block its step for ever:
// the cancelled step ends, by KillWait.
func TestRootHostStopped(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "KillWait=1\n"})
	p := n.start(t, call{args: []string{"run", "sleep", "86400"}})
	id := n.running(t).id()
	must(t, syscall.Kill(n.victim(t, "spankhost"), syscall.SIGSTOP))
	if r := n.ctl(t, "cancel", id); r.code != 0 {
		t.Errorf("cancel: %v", r)
	}
	if r := p.wait(t); r.code == 0 {
		t.Errorf("run: %v", r)
	}
	if doc := n.ended(t, id); doc.State != "CANCELLED" && !strings.Contains(doc.Reason, "after the step was cancelled (KillWait") {
		t.Errorf("state %s, reason %q", doc.State, doc.Reason)
	}
	n.checkClean(t)
}
