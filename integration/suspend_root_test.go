package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api/stepapi"
	"stepd/internal/testkit"
	"stepd/step"
)

// ticker counts in the file ticks.STEP, twenty times a second, and notes the job
// control signals that it hears. It has no child: SIGTSTP would stop that, and a
// shell runs its traps when its child has ended.
const ticker = `
trap 'echo tstp >>heard.$SLURM_STEP_ID' TSTP
trap 'echo cont >>heard.$SLURM_STEP_ID' CONT
mkfifo fifo.$SLURM_JOB_ID.$SLURM_STEP_ID && exec 3<>fifo.$SLURM_JOB_ID.$SLURM_STEP_ID
i=0
while :; do i=$((i+1)); echo $i >ticks.$SLURM_STEP_ID; read -t 0.05 -u 3; done
`

// suspendDoc is the part of a STEP document that a suspend changes.
type suspendDoc struct {
	State            string  `json:"state"`
	Suspended        *string `json:"suspended"`
	SuspendedBy      *int    `json:"suspended_by"`
	SuspendedSeconds float64 `json:"suspended_seconds"`
}

func (n *node) suspension(t testing.TB, id string) suspendDoc {
	t.Helper()
	r := n.ctlRoot(t, "show", "--json", id)
	var doc struct {
		Step suspendDoc `json:"step"`
	}
	if err := json.Unmarshal([]byte(r.out), &doc); err != nil {
		t.Fatalf("show: %v: %v", err, r)
	}
	return doc.Step
}

// suspendedAt is when the step's event log has it suspended.
func (n *node) suspendedAt(t testing.TB, id string) (at time.Time) {
	t.Helper()
	for line := range strings.Lines(n.ctlRoot(t, "events", id).out) {
		var e struct {
			Time  time.Time
			Event string
		}
		if must(t, json.Unmarshal([]byte(line), &e)); e.Event == "suspend" {
			at = e.Time
		}
	}
	if at.IsZero() {
		t.Errorf("step %s: its event log tells of no suspend", id)
	}
	return at
}

// hears waits until the ticker of step 0 has noted these job control signals.
func (n *node) hears(t testing.TB, want string) {
	t.Helper()
	eventually(t, callTimeout, "the task to hear", func() error {
		if heard, err := os.ReadFile(filepath.Join(n.wd, "heard.0")); err != nil || string(heard) != want {
			return fmt.Errorf("it heard %q, want %q: %v", heard, want, err)
		}
		return nil
	})
}

// tick is what the ticker of a step has counted.
func (n *node) tick(id string) string {
	_, step, _ := strings.Cut(id, ".")
	b, err := os.ReadFile(filepath.Join(n.wd, "ticks."+step))
	if err != nil {
		return ""
	}
	return string(b)
}

// ticks fails the test unless the ticker of a step runs, or stands still.
func (n *node) ticks(t testing.TB, id string, want bool) {
	t.Helper()
	before := n.tick(id)
	if !want {
		time.Sleep(250 * time.Millisecond)
		if now := n.tick(id); now != before {
			t.Errorf("step %s went on from %q to %q", id, before, now)
		}
		return
	}
	eventually(t, callTimeout, "the ticker of "+id, func() error {
		if now := n.tick(id); now == before || now == "" {
			return fmt.Errorf("it is at %q", now)
		}
		return nil
	})
}

// stepNames counts the names of steps. Each has its own: noded may still show the step before it as running.
var stepNames atomic.Int32

// startTicker starts a step that counts.
func (n *node) startTicker(t testing.TB, args ...string) (*process, string) {
	t.Helper()
	name := fmt.Sprintf("ticker%d", stepNames.Add(1))
	p := n.start(t, call{args: append(append([]string{"run", "-J", name}, args...), "bash", "-c", ticker)})
	id := n.runs(t, name).id()
	n.ticks(t, id, true)
	return p, id
}

// ok fails the test unless the command has said nothing and ended with 0.
func ok(t testing.TB, what string, r result) {
	t.Helper()
	if r.code != 0 || r.err != "" {
		t.Errorf("%s: %v", what, r)
	}
}

// refused fails the test unless the command was refused in these words.
func refused(t testing.TB, what string, r result, words ...string) {
	t.Helper()
	if r.code != 1 {
		t.Errorf("%s: %v", what, r)
	}
	contains(t, what, r.err, words...)
}

// TestRootSuspend: all of a step stands still and goes on again; what it hears,
// what others see, and who may do it.
func TestRootSuspend(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	p, id := n.startTicker(t)
	began := time.Now()
	ok(t, "suspend", n.ctl(t, "suspend", id))
	if took := time.Since(began); took < 2*time.Second || took > 20*time.Second && !testkit.InGuest() {
		t.Errorf("suspend took %v, want the 2 s between SIGTSTP and the freezer", took)
	}
	n.ticks(t, id, false)
	n.hears(t, "tstp\n")
	if doc := n.suspension(t, id); doc.State != "RUNNING" || doc.Suspended == nil || doc.SuspendedBy == nil || *doc.SuspendedBy != int(testUser(t).uid) {
		t.Errorf("suspended: %+v", doc)
	}
	contains(t, "ps", n.ctl(t, "ps").out, "SUSPENDED")
	contains(t, "show", n.ctl(t, "show", id).out, "SUSPENDED", "suspended since")
	refused(t, "a signal", n.ctl(t, "signal", id), "the step is suspended")
	refused(t, "another user's resume", n.do(t, call{args: []string{"resume", id}, uid: 7002}), "permission denied")
	ok(t, "resume", n.ctl(t, "resume", id))
	n.ticks(t, id, true)
	n.hears(t, "tstp\ncont\n")
	if doc := n.suspension(t, id); doc.Suspended != nil || doc.SuspendedSeconds < 0.2 {
		t.Errorf("resumed: %+v", doc)
	}
	refused(t, "a resume of what runs", n.ctl(t, "resume", id), "not suspended")

	ok(t, "root's suspend", n.ctlRoot(t, "suspend", id))
	refused(t, "the owner's resume", n.ctl(t, "resume", id), "suspended by root")
	// A suspended step is killed at once: not after 2 s, not after KillWait (30 s).
	began = time.Now()
	ok(t, "cancel", n.ctl(t, "cancel", id))
	if r := p.wait(t); r.code != 137 {
		t.Errorf("run: %v", r)
	}
	if took := time.Since(began); took > 20*time.Second && !testkit.InGuest() {
		t.Errorf("the suspended step ended %v after its cancel", took)
	}
	if doc := n.ended(t, id); doc.State != "CANCELLED" {
		t.Errorf("state %s", doc.State)
	}
	events := n.ctl(t, "events", id).out
	if s, r := strings.Count(events, `"event":"suspend"`), strings.Count(events, `"event":"resume"`); s != 2 || r != 2 {
		t.Errorf("%d suspend and %d resume events in\n%s", s, r, events)
	}
	n.checkClean(t)
	refused(t, "a step that has ended", n.ctl(t, "suspend", id), "step "+id+" has ended")
	refused(t, "no step", n.ctl(t, "suspend", "99.0"), `no such step "99.0"`)
	n.checkClean(t)
}

// TestRootSuspendTwice: a suspend during another one answers when the tasks stand still.
func TestRootSuspendTwice(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	p, id := n.startTicker(t)
	first := n.start(t, call{args: []string{"suspend", id}})
	n.hears(t, "tstp\n")
	ok(t, "the second suspend", n.ctl(t, "suspend", id))
	n.ticks(t, id, false)
	if doc := n.suspension(t, id); doc.Suspended == nil {
		t.Errorf("the second suspend has answered, and the record has %+v", doc)
	}
	ok(t, "the first suspend", first.wait(t))
	ok(t, "cancel", n.ctl(t, "cancel", id))
	if r := p.wait(t); r.code != 137 {
		t.Errorf("run: %v", r)
	}
	n.checkClean(t)
}

// TestRootSuspendJob: a job stands still with all of its steps, and takes none.
func TestRootSuspendJob(t *testing.T) {
	t.Parallel()
	n := startNode(t, site{})
	n.held(t, "-n5")
	job := fmt.Sprint(n.status(t).Jobs[0].JobID)
	var ids []string
	var steps []*process
	for range 4 {
		p, id := n.startTicker(t, "--jobid", job)
		steps, ids = append(steps, p), append(ids, id)
	}
	ok(t, "suspend", n.ctlRoot(t, "suspend", job))
	var at []time.Time
	for _, id := range ids {
		at = append(at, n.suspendedAt(t, id))
	}
	slices.SortFunc(at, time.Time.Compare)
	if apart := at[len(at)-1].Sub(at[0]); apart >= 5*time.Second { // a busy machine may keep one of them waiting
		t.Errorf("the first and the last of four steps stand still %v apart, each takes 2 s: not side by side", apart)
	}
	for _, id := range ids {
		n.ticks(t, id, false)
	}
	refused(t, "a further step", n.ctl(t, "run", "--jobid", job, "true"), "job "+job+" is suspended since")
	refused(t, "the owner's resume", n.ctl(t, "resume", job), "was suspended by root")
	contains(t, "node status", n.ctl(t, "node", "status", "--json").out, `"suspended":"20`)
	n.kill9(t)
	n.boot(t)
	for _, id := range ids {
		n.ticks(t, id, false)
		if doc := n.suspension(t, id); doc.Suspended == nil {
			t.Errorf("step %s after the restart: %+v", id, doc)
		}
	}
	refused(t, "a further step, after the restart", n.ctl(t, "run", "--jobid", job, "true"), "is suspended since")
	ok(t, "resume", n.ctlRoot(t, "resume", job))
	for _, id := range ids {
		n.ticks(t, id, true)
	}
	ok(t, "a further step", n.ctl(t, "run", "--jobid", job, "true"))
	ok(t, "suspend again", n.ctl(t, "suspend", job))
	ok(t, "cancel", n.ctl(t, "cancel", job))
	for _, p := range steps {
		if r := p.wait(t); r.code != 137 {
			t.Errorf("run: %v", r)
		}
	}
	n.checkClean(t)
}

// TestRootSuspendKilled: a suspended step ends, whichever daemon dies.
func TestRootSuspendKilled(t *testing.T) {
	t.Parallel()
	n := startNode(t, site{})
	for _, victim := range []string{"stepd", "spankhost"} {
		p, id := n.startTicker(t)
		ok(t, "suspend", n.ctl(t, "suspend", id))
		must(t, killNow(n.victim(t, victim)))
		n.checkClean(t)
		if r := p.wait(t); r.code != 1 {
			t.Errorf("run: %v", r)
		}
		if doc := n.ended(t, id); doc.State != "FAILED" || !strings.Contains(doc.Reason, victim) {
			t.Errorf("after %s was killed: %+v", victim, doc)
		}
	}
	t.Run("noded and stepd", func(t *testing.T) {
		p, id := n.startTicker(t)
		ok(t, "suspend", n.ctl(t, "suspend", id))
		stepd := n.findProcess(t, "stepd")
		n.kill9(t)
		must(t, killNow(stepd.pid))
		n.boot(t)
		n.checkClean(t)
		if r := p.wait(t); r.code != 1 {
			t.Errorf("run: %v", r)
		}
		if doc := n.ended(t, id); doc.State != "FAILED" {
			t.Errorf("record: %+v", doc)
		}
	})
	t.Run("a task", func(t *testing.T) {
		p, id := n.startTicker(t)
		ok(t, "suspend", n.ctl(t, "suspend", id))
		ok(t, "signal", n.ctl(t, "signal", "-s", "KILL", id))
		if r := p.wait(t); r.code != 137 {
			t.Errorf("run: %v", r)
		}
		n.ended(t, id)
		n.checkClean(t)
	})
	n.serves(t)
}

// TestRootSuspendStopped: where there is no freezer it is SIGSTOP.
func TestRootSuspendStopped(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "ProctrackType=proctrack/linuxproc\n"})
	p, id := n.startTicker(t)
	ok(t, "suspend", n.ctl(t, "suspend", id))
	n.ticks(t, id, false)
	if stat := readFile(t, fmt.Sprintf("/proc/%d/stat", *n.show(t, id).Tasks[0].PID)); !strings.Contains(stat, ") T ") {
		t.Errorf("the task is not stopped: %s", stat)
	}
	ok(t, "resume", n.ctl(t, "resume", id))
	n.ticks(t, id, true)
	ok(t, "suspend", n.ctl(t, "suspend", id))
	ok(t, "cancel", n.ctl(t, "cancel", id))
	if r := p.wait(t); r.code != 137 {
		t.Errorf("run: %v", r)
	}
	n.checkClean(t)
}

// TestRootSuspendLaunch: a step that is suspended during its launch comes as
// far as its gate, and begins when it is resumed.
func TestRootSuspendLaunch(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	n.restartWith(t, "Prolog="+n.script(t, "prolog", n.path("prolog.out"), "while ! test -e "+n.path("go")+"; do sleep 0.02; done"))
	p := n.start(t, call{args: []string{"run", "sh", "-c", "echo began >began"}})
	eventually(t, callTimeout, "the prolog", func() error {
		if len(n.ps(t)) == 0 {
			return errors.New("no step")
		}
		return nil
	})
	id := n.last(t).id()
	ok(t, "suspend", n.ctl(t, "suspend", id))
	must(t, os.WriteFile(n.path("go"), nil, 0o644))
	eventually(t, callTimeout, "the suspended step", func() error {
		if doc := n.suspension(t, id); doc.Suspended == nil {
			return fmt.Errorf("%+v", doc)
		}
		return nil
	})
	time.Sleep(300 * time.Millisecond)
	if _, err := os.Stat(filepath.Join(n.wd, "began")); err == nil && n.suspension(t, id).State == "STARTING" {
		t.Error("the task has begun")
	}
	ok(t, "resume", n.ctl(t, "resume", id))
	if r := p.wait(t); r.code != 0 {
		t.Errorf("run: %v", r)
	}
	if b := readFile(t, filepath.Join(n.wd, "began")); b != "began\n" {
		t.Errorf("the task wrote %q", b)
	}
	n.checkClean(t)
}

// TestRootSuspendJobPart: the client that resumes a job gets the name of the step that stays
// suspended, since root has suspended it by itself.
func TestRootSuspendJobPart(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	p, id := n.startTicker(t)
	job, _, _ := strings.Cut(id, ".")
	ok(t, "root's suspend of the step", n.ctlRoot(t, "suspend", id))
	ok(t, "the owner's suspend of the job", n.ctl(t, "suspend", job))
	refused(t, "the owner's resume", n.ctl(t, "resume", job), "not all of its steps", id, "was suspended by root")
	n.ticks(t, id, false)
	ok(t, "root's resume of the step", n.ctlRoot(t, "resume", id))
	n.ticks(t, id, true)
	ok(t, "cancel", n.ctl(t, "cancel", id))
	p.wait(t)
	n.checkClean(t)
}

// TestRootSuspendPastNoded: at stepd's own socket the step's owner gets what it has to say of the step,
// and neither resumes nor suspends it: other jobs may have its CPUs, as noded alone knows.
func TestRootSuspendPastNoded(t *testing.T) {
	waits(t)
	n := startNode(t, site{Node: "CPUs=2", Slurm: "SelectTypeParameters=CR_CPU\n"})
	p, id := n.startTicker(t, "-n1")
	job, _, _ := strings.Cut(id, ".")
	owner := testUser(t).uid
	// ask returns stepd's answer to a connection of the owner's, which may say that it is noded.
	ask := func(role stepapi.Role, m stepapi.Msg) string {
		t.Helper()
		var c *stepapi.Conn
		must(t, asUser(owner, func() (err error) {
			c, err = stepapi.DialDir(t.Context(), n.path("run", "steps"), id+".sock")
			return err
		}))
		defer c.Close()
		m.Seq = 1
		must(t, c.Send(&stepapi.Msg{Type: stepapi.TypeHello, Version: stepapi.Version, Role: role}))
		must(t, c.Send(&m))
		for {
			got, err := c.Hear()
			must(t, err)
			if got.Type == stepapi.TypeReply && got.Seq == m.Seq {
				return got.Error
			}
		}
	}
	root := uint32(0)
	denied := func(typ stepapi.Type) {
		t.Helper()
		for _, role := range []stepapi.Role{stepapi.RoleTool, stepapi.RoleLaunch, stepapi.RoleNoded} {
			for _, by := range []*uint32{nil, &owner, &root} {
				if got := ask(role, stepapi.Msg{Type: typ, By: by}); got != "permission denied: only root speaks for noded" {
					t.Errorf("%s as %s: %q", typ, role, got)
				}
			}
		}
	}
	denied(stepapi.TypeSuspend)
	n.ticks(t, id, true)
	ok(t, "suspend", n.ctl(t, "suspend", job))
	other := n.sleeps(t, "-n2")
	denied(stepapi.TypeResume)
	n.ticks(t, id, false)
	if got := ask(stepapi.RoleTool, stepapi.Msg{Type: stepapi.TypeSignal, Signal: int(unix.SIGCONT), Scope: step.ScopeTasks}); !strings.Contains(got, "the step is suspended") {
		t.Errorf("SIGCONT: %q", got)
	}
	if got := ask(stepapi.RoleTool, stepapi.Msg{Type: stepapi.TypeStat}); got != "" {
		t.Errorf("stat: %q", got)
	}
	n.ticks(t, id, false)
	if jobs := n.given(t); len(jobs) != 2 || !jobs[0].CPUsFree || jobs[1] != other {
		t.Errorf("the jobs are %v", jobs)
	}
	ok(t, "cancel of the other job", n.ctl(t, "cancel", fmt.Sprint(other.ID)))
	eventually(t, callTimeout, "the owner's resume, by noded", func() error {
		if r := n.ctl(t, "resume", job); r.code != 0 {
			return fmt.Errorf("%v", r)
		}
		return nil
	})
	n.ticks(t, id, true)
	if got := ask(stepapi.RoleTool, stepapi.Msg{Type: stepapi.TypeCancel}); got != "" {
		t.Errorf("cancel: %q", got)
	}
	if r := p.wait(t); r.code != 143 && r.code != 137 {
		t.Errorf("run: %v", r)
	}
	n.checkClean(t)
}
