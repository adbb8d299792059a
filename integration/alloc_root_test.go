package integration

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// withStepctl is an environment in which scripts find stepctl.
func (n *node) withStepctl() []string {
	return []string{"PATH=" + filepath.Dir(n.bin) + ":/usr/bin:/bin"}
}

// held starts an allocation that lives until its command's input ends.
func (n *node) held(t testing.TB, args ...string) *process {
	t.Helper()
	before := len(n.status(t).Jobs)
	p := n.start(t, call{args: append(append([]string{"alloc"}, args...), "sleep", "86395"), env: n.withStepctl()})
	eventually(t, callTimeout, "the allocation", func() error {
		if len(n.status(t).Jobs) == before {
			return errors.New("no job")
		}
		return nil
	})
	// The job exists before its client knows of it, which starts the command then.
	eventually(t, callTimeout, "the allocation's command", func() error {
		if len(n.pidsOf(t, "sleep 86395")) < 2 { // and alloc, which has it among its arguments
			return errors.New("not yet")
		}
		return nil
	})
	return p
}

// TestRootAllocation: a job without a step holds its CPUs, takes steps that are
// numbered from 0, and ends with its command.
func TestRootAllocation(t *testing.T) {
	n := startNode(t, site{})
	r := n.do(t, call{args: []string{"alloc", "-n3", "-J", "work", "sh", "-c", `test -z "${SLURM_STEP_ID+set}" || exit 9
stepctl run -n1 sh -c 'echo $SLURM_JOB_ID.$SLURM_STEP_ID'
stepctl run -n3 sh -c 'echo $SLURM_NTASKS $SLURM_JOB_ID.$SLURM_STEP_ID'
stepctl run -n4 true; echo $?
stepctl node status --json
stepctl ps; stepctl ps 1; stepctl ps 1.0
exit 5`}, env: append(n.withStepctl(), "SLURM_STEP_ID=7", "SLURM_STEPID=7")})
	if r.code != 5 || !strings.HasPrefix(r.out, "1.0\n3 1.1\n3 1.1\n3 1.1\n1\n") {
		t.Errorf("got %v", r)
	}
	contains(t, "node status inside", r.out, `"name":"work"`, `"origin":"alloc"`, `"cpus":"0-2"`, `"state":"ALLOCATED"`)
	for listed, want := range map[string]int{"\n1     work  ": 2, "(allocation, CPUs 0-2)": 2, "\n1.0   ": 2, "\n1.1   ": 1} {
		if strings.Count(r.out, listed) != want {
			t.Errorf("ps lists %q %d times, want %d:\n%s", listed, strings.Count(r.out, listed), want, r.out)
		}
	}
	contains(t, "stderr", r.err, "needs 4 CPUs in job 1, which has 3 CPUs")
	// Release has answered: nothing is left.
	if doc := n.status(t); len(doc.Jobs) != 0 || doc.State != "IDLE" {
		t.Errorf("node %+v", doc)
	}
	n.checkClean(t)
}

// TestRootAllocationEnds: with the client, however that ends, and by whom it
// may be ended.
func TestRootAllocationEnds(t *testing.T) {
	n := startNode(t, site{})
	p := n.held(t, "-n2")
	id := n.status(t).Jobs[0].JobID
	job := fmt.Sprint(id)
	step := n.start(t, call{args: []string{"run", "--jobid", job, "sleep", "86394"}})
	n.running(t)
	if r := n.do(t, call{args: []string{"run", "--jobid", job, "true"}, uid: bob.uid}); r.code != 1 || !strings.Contains(r.err, "permission denied") {
		t.Errorf("a step in another's job: %v", r)
	}
	if r := n.do(t, call{args: []string{"cancel", job}, uid: bob.uid}); r.code != 1 || !strings.Contains(r.err, "permission denied") {
		t.Errorf("another's job was cancelled: %v", r)
	}
	must(t, p.cmd.Process.Kill())
	if r := step.wait(t); r.code != 143 {
		t.Errorf("the step of a job whose client was killed: %v", r)
	}
	if doc := n.lastEnded(t); doc.State != "CANCELLED" || doc.Reason != "the client that asked for the job is gone" {
		t.Errorf("the step: %+v", doc)
	}
	n.idle(t)
	n.killOwn(t, p)

	// A restarted noded finds the client again, and its death too.
	p = n.held(t)
	n.kill9(t)
	n.boot(t)
	id = n.status(t).Jobs[0].JobID
	if r := n.ctl(t, "run", "--jobid", fmt.Sprint(id), "echo", "ran"); r.out != "ran\n" {
		t.Errorf("a step after the restart: %v", r)
	}
	n.kill9(t)
	must(t, p.cmd.Process.Kill())
	n.killOwn(t, p)
	n.boot(t)
	n.idle(t)
	n.checkClean(t)
}

// killOwn ends what a killed alloc has left of its own command.
func (n *node) killOwn(t testing.TB, p *process) {
	t.Helper()
	defer p.cancel()
	for _, pid := range n.pidsOf(t, "sleep 86395") { // first: it holds the client's streams
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be at its end
	}
	_ = p.cmd.Wait() // it was killed
}

// TestRootReservationOfDeadClient: a client that dies in local_user_init leaves
// a step that was never launched, and an epilog without a prolog.
func TestRootReservationOfDeadClient(t *testing.T) {
	n := startNode(t, site{Stepd: "HookTimeout=0\n"})
	so, marks := buildClient(t, n), n.markFile(t)
	n.stack(t, fmt.Sprintf("required %s ctx=1 hook=local_user_init do=hang mark=%s", so, marks))
	p := n.start(t, call{args: []string{"run", "echo", "ran"}})
	eventually(t, callTimeout, "the reservation", func() error {
		if !strings.Contains(readFile(t, marks), "1 local_user_init") {
			return errors.New("no")
		}
		return nil
	})
	if doc := n.last(t); doc.State != "PENDING" || doc.StepdPID != 0 {
		t.Errorf("the step: %+v", doc)
	}
	must(t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // it was killed
	p.cancel()
	n.idle(t)
	if doc := n.last(t); doc.State != "CANCELLED" || doc.Reason != "the client that reserved it is gone" {
		t.Errorf("the step: %+v", doc)
	}
	if text := readFile(t, marks); strings.Contains(text, "5 job_prolog") || !strings.Contains(text, "5 job_epilog") || strings.Contains(text, "2 ") {
		t.Errorf("marks:\n%s", text)
	}
	n.checkClean(t)
}

// TestRootStepsWait: a step of a job that does not fit beside the others says in one line
// what it waits for, and when that is free; a step that overlaps waits for no other.
func TestRootStepsWait(t *testing.T) {
	n := startNode(t, site{})
	r := n.do(t, call{args: []string{"alloc", "-Q", "-n2", "sh", "-c", `mkfifo f
stepctl run -n2 -t 10 sh -c 'test $SLURM_PROCID = 1 || read x <f' &
while ! stepctl show --json 1.0 2>/dev/null | grep -q '"state":"RUNNING"'; do :; done
touch e
stepctl run -n1 echo second 2>e &
while ! grep -q waiting e; do :; done
stepctl run -n2 --overlap echo overlapping
stepctl run -n2 -Q echo third &
stepctl run -n3 true
echo >f
wait`}, env: n.withStepctl()})
	// The last two write by clients of their own: which is first is not said.
	if rest, ok := strings.CutPrefix(r.out, "overlapping\noverlapping\n"); r.code != 0 || !ok || !slices.Equal(sortedLines(rest), []string{"second", "third", "third"}) {
		t.Errorf("got %v", r)
	}
	if r.err != "stepctl: error: the step does not fit: it needs 3 CPUs in job 1, which has 2 CPUs; --overcommit shares CPUs among tasks\n" {
		t.Errorf("stderr %q", r.err)
	}
	e := readFile(t, filepath.Join(n.wd, "e"))
	if !regexp.MustCompile(`^stepctl: waiting for 1 CPU of job 1: free at (\d{4}-\d\d-\d\dT)?\d\d:\d\d at the latest\n$`).MatchString(e) {
		t.Errorf("the step that waits: %q", e)
	}
	// Of a step of a step, which would wait for itself, too.
	if r := n.do(t, call{args: []string{"alloc", "-Q", "-n2", "stepctl", "run", "stepctl", "run", "echo", "inner"}, env: n.withStepctl()}); r.out != "inner\ninner\ninner\ninner\n" {
		t.Errorf("a step within a step: %v", r)
	}
	// What has no place on the node says when there will be some.
	p := n.held(t, "-n60", "-t", "30")
	r = n.ctl(t, "run", "-n5", "true")
	if r.code != 1 || !regexp.MustCompile(`of its 64 CPUs 4 are free; --overcommit shares them with other steps; free at \S+ at the latest\n$`).MatchString(r.err) {
		t.Errorf("got %v", r)
	}
	must(t, p.cmd.Process.Signal(syscall.SIGTERM))
	p.wait(t)
	n.idle(t)
	n.checkClean(t)
}
