package integration

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRootBecomingTheUser looks at a task from within: nothing of root, of the
// host's descriptors or of the daemon's state is left after exec.
func TestRootBecomingTheUser(t *testing.T) {
	n := startNode(t, site{Before: underUmask("077")}) // users reach it nevertheless
	r := n.ctl(t, "run", "-n", "2", "-o", "state.%t", "sh", "-c", "cat /proc/self/status; cat /proc/self/oom_score_adj; ls /proc/self/fd; umask")
	if r.code != 0 {
		t.Fatal(r)
	}
	own, err := os.ReadFile("/proc/self/status")
	must(t, err)
	want := map[string]string{
		"Uid": "7001 7001 7001 7001", "Gid": "7001 7001 7001 7001", "Groups": "7001 7101 7102", "NoNewPrivs": "0",
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapAmb": "0000000000000000",
		"CapBnd": statusField(string(own), "CapBnd"), "SigBlk": "0000000000000000", "SigIgn": "0000000000000000", "Umask": "0022",
		"Seccomp": statusField(string(own), "Seccomp"), "TracerPid": "0",
	}
	for rank := range 2 {
		b, err := os.ReadFile(n.path("wd", fmt.Sprintf("state.%d", rank)))
		must(t, err)
		for name, value := range want {
			if got := statusField(string(b), name); got != value {
				t.Errorf("rank %d: %s: got %q, want %q", rank, name, got, value)
			}
		}
		_, rest, _ := strings.Cut(string(b), "nonvoluntary_ctxt_switches:")
		lines := strings.Split(strings.TrimSpace(rest), "\n")
		// The value; oom_score_adj; then the descriptors: 3 is ls's own.
		if len(lines) < 3 || lines[1] != strings.TrimSpace(readFile(t, "/proc/self/oom_score_adj")) {
			t.Errorf("rank %d: oom_score_adj: %q", rank, lines)
		} else if fds := lines[2 : len(lines)-1]; !slices.Equal(fds, []string{"0", "1", "2", "3"}) {
			t.Errorf("rank %d: descriptors %q, want 0, 1, 2 and ls's own 3", rank, fds)
		}
	}
}

func readFile(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

// statusField returns a line of /proc/PID/status with single blanks.
func statusField(status, name string) string {
	for _, line := range strings.Split(status, "\n") {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.Join(strings.Fields(value), " ")
		}
	}
	return absent
}

// TestRootNoWayBack: a task cannot become root again, nor touch what belongs
// to the daemon.
func TestRootNoWayBack(t *testing.T) {
	n := startNode(t, site{})
	compile(t, "testdata/tasks/regain.c", "-o", n.path("regain"))
	r := n.ctl(t, "run", n.path("regain"))
	if r.code != 0 || r.out != "all refused\n" {
		t.Errorf("want every attempt refused, got %v", r)
	}
	r = n.ctl(t, "run", "sh", "-c", "for f in "+n.path("spool")+" "+n.path("spool")+"/* "+n.run+" "+n.run+"/steps "+n.run+"/steps/*; do test -w $f -a ! -S $f && echo $f; done; ls "+n.path("spool")+" 2>/dev/null; true")
	if strings.TrimSpace(r.out) != "" {
		t.Errorf("the task can reach into the spool: %v", r)
	}
}

// TestRootNoNewPrivs: with NoNewPrivs=yes a setuid program gains nothing.
func TestRootNoNewPrivs(t *testing.T) {
	n := startNode(t, site{Stepd: "NoNewPrivs=yes\n"})
	r := n.ctl(t, "run", "grep", "NoNewPrivs", "/proc/self/status")
	if r.out != "NoNewPrivs:\t1\n" {
		t.Errorf("got %v", r)
	}
}

// TestRootUidOption: root may run a step as another user, a user may not.
func TestRootUidOption(t *testing.T) {
	n := startNode(t, site{})
	for _, who := range []string{"7001", alice.name} {
		r := n.do(t, call{args: []string{"run", "--uid", who, "id"}, root: true, dir: "/"})
		if r.code != 0 || !strings.HasPrefix(r.out, "uid=7001(stepdt1) gid=7001(stepdt1) groups=7001(stepdt1),7101") {
			t.Errorf("--uid %s: %v", who, r)
		}
	}
	r := n.do(t, call{args: []string{"run", "--uid", "7001", "--gid", "7102", "id", "-g"}, root: true, dir: "/"})
	if r.out != "7102\n" {
		t.Errorf("--gid: %v", r)
	}
	r = n.do(t, call{args: []string{"run", "--uid", "7999", "--gid", "7998", "id", "-G"}, root: true, dir: "/"})
	if r.out != "7998\n" {
		t.Errorf("a uid without an entry has the group it was given alone: %v", r)
	}
	r = n.do(t, call{args: []string{"run", "--uid", "7999", "id"}, root: true, dir: "/"})
	if r.code != 1 || !strings.Contains(r.err, "7999") || !strings.Contains(r.err, "gid") {
		t.Errorf("a uid without an entry needs --gid: %v", r)
	}
	r = n.do(t, call{args: []string{"run", "id", "-u"}, root: true, dir: "/"})
	if r.code != 0 || r.out != "0\n" {
		t.Errorf("root's own step: %v", r)
	}
	for _, who := range []string{"0", "root", "7002", bob.name} {
		r := n.ctl(t, "run", "--uid", who, "id")
		if r.code != 1 || r.out != "" || !strings.HasPrefix(r.err, "stepctl: error: ") {
			t.Errorf("--uid %s as a user: %v", who, r)
		}
	}
}

// TestRootOthersSteps: a user acts on own steps alone, and sees of
// another's only that they exist.
func TestRootOthersSteps(t *testing.T) {
	n := startNode(t, site{})
	p := n.start(t, call{args: []string{"run", "-J", "secret", "sleep", "4711"}})
	step := n.running(t)
	for _, args := range [][]string{{"cancel", step.id()}, {"signal", "-s", "KILL", step.id()}} {
		r := n.do(t, call{args: args, uid: bob.uid})
		if want := fmt.Sprintf("permission denied (only uid %d and root may)\n", alice.uid); r.code != 1 || !strings.HasSuffix(r.err, want) {
			t.Errorf("stepctl %q as another user: want %q, got %v", args, want, r)
		}
	}
	if r := n.do(t, call{args: []string{"node", "drain", "by bob"}, uid: bob.uid}); r.code != 1 || r.err != "stepctl: error: permission denied (only root may)\n" {
		t.Errorf("a drain by a user: %v", r)
	}
	r := n.do(t, call{args: []string{"run", "--jobid", fmt.Sprint(step.JobID), "true"}, uid: bob.uid, dir: "/"})
	if r.code != 1 || !strings.Contains(r.err, "permission denied") {
		t.Errorf("a step in another's job: want permission denied, got %v", r)
	}
	r = n.do(t, call{args: []string{"ps", "--json"}, uid: bob.uid})
	if r.code != 0 || !strings.Contains(r.out, step.User) || strings.Contains(r.out, "4711") {
		t.Errorf("ps shows everyone's steps, but not their command: %v", r)
	}
	if len(n.ps(t)) != 1 {
		t.Error("the step has not survived")
	}
	if r := n.ctl(t, "cancel", step.id()); r.code != 0 {
		t.Errorf("cancel by the owner: %v", r)
	}
	if r := p.wait(t); r.code != 143 {
		t.Errorf("run of a cancelled step: want 143, got %v", r)
	}
	if doc := n.ended(t, step.id()); doc.State != "CANCELLED" {
		t.Errorf("state %s, want CANCELLED", doc.State)
	}
	for _, id := range []string{step.id(), "999.0"} {
		r := n.ctl(t, "signal", id)
		if r.code != 1 || !strings.HasPrefix(r.err, "stepctl: error: ") {
			t.Errorf("signal to %s: %v", id, r)
		}
	}
	r = n.ctl(t, "show", "999.0")
	if r.code != 1 || r.err != "stepctl: error: no such step \"999.0\"\n" {
		t.Errorf("show of an unknown step: %v", r)
	}
}

// TestRootSignals: stepctl signal reaches every task; Ctrl-C and SIGTERM of
// stepctl run reach them too.
func TestRootSignals(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	// Says that it is ready, then what it got, and ends.
	catch := `trap 'echo got USR1; exit 5' USR1; trap 'echo got INT; exit 6' INT; touch ready.$SLURM_PROCID; while :; do sleep 0.05; done`
	ready := func(t *testing.T) {
		eventually(t, callTimeout, "two tasks that listen", func() error {
			for rank := range 2 {
				if _, err := os.Stat(n.path("wd", "ready."+strconv.Itoa(rank))); err != nil {
					return err
				}
			}
			return nil
		})
		for rank := range 2 {
			must(t, os.Remove(n.path("wd", "ready."+strconv.Itoa(rank))))
		}
	}
	t.Run("stepctl signal", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "-n", "2", "bash", "-c", catch}})
		ready(t)
		if r := n.ctl(t, "signal", "-s", "USR1", n.running(t).id()); r.code != 0 || r.err != "" {
			t.Errorf("signal: %v", r)
		}
		if r := p.wait(t); r.code != 5 || r.out != "got USR1\ngot USR1\n" {
			t.Errorf("run: %v", r)
		}
	})
	t.Run("SIGTERM to stepctl run", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "-n", "2", "sleep", "1000"}})
		n.running(t)
		must(t, p.cmd.Process.Signal(syscall.SIGTERM))
		if r := p.wait(t); r.code != 143 {
			t.Errorf("want 143, got %v", r)
		}
	})
	t.Run("SIGKILL to stepctl run", func(t *testing.T) {
		p := n.start(t, call{args: []string{"run", "sh", "-c", "touch ready.0 ready.1; while [ ! -e go ]; do sleep 0.05; done; exit 3"}})
		step := n.running(t)
		ready(t) // the state is RUNNING a moment before the task is
		must(t, p.cmd.Process.Kill())
		p.wait(t)
		n.letGo(t)
		// After the gate the step goes on without its client.
		eventually(t, callTimeout, "the end of the step", func() error {
			if doc := n.show(t, step.id()); doc.ExitCode == nil || *doc.ExitCode != 3 {
				return fmt.Errorf("%+v", doc)
			}
			return nil
		})
	})
	n.checkClean(t)
}

// TestRootNothingEscapes: what daemonizes, ignores signals or changes its
// session ends with its step.
func TestRootNothingEscapes(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	for _, c := range []struct{ name, script string }{
		{"background", `sleep 8641 & true`},
		{"setsid", `setsid sleep 8642 </dev/null >/dev/null 2>&1 & sleep 0.1`},
		{"double fork", `(setsid sh -c 'sleep 8643 </dev/null >/dev/null 2>&1 &' &); sleep 0.1`},
		{"ignores TERM", `(trap "" TERM HUP INT; setsid sleep 8644 </dev/null >/dev/null 2>&1 &); sleep 0.1`},
		{"stopped", `setsid sleep 8645 </dev/null >/dev/null 2>&1 & kill -STOP $!; true`},
		{"keeps the output open", `sleep 8646 & exit 4`},
		{"fork bomb, small", `for i in 1 2 3 4 5 6 7 8 9; do (setsid sh -c 'for j in 1 2 3 4 5 6 7 8 9; do sleep 8647 & done; wait' &) ; done; sleep 0.1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			started := time.Now()
			r := n.ctl(t, "run", "-n", "2", "sh", "-c", c.script)
			if r.code != 0 && r.code != 4 {
				t.Errorf("got %v", r)
			}
			if d := time.Since(started); d > 30*time.Second {
				t.Errorf("the end took %v", d)
			}
			n.checkClean(t)
		})
	}
}
