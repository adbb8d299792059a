package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
)

const (
	// chaosSteps is how many steps make test runs; CHAOS is another number, SEED chooses
	// another course, ROUND runs one round of it alone.
	chaosSteps = 60
	// chaosAtOnce is the most steps of a round, and chaosWithin when its fault comes.
	chaosAtOnce = 4
	chaosWithin = 120 * time.Millisecond
)

// TestRootChaos: rounds of a few steps of all kinds and one fault among them, drawn by a seed:
// a process is killed, crashes or stands still, the spool is full or damaged, a mount hangs.
// Nothing is left afterwards, the node serves, and no record says of a task what it has not done.
func TestRootChaos(t *testing.T) {
	testkit.RequireRoot(t)
	waits(t)
	number := func(name string, otherwise int) int {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.Atoi(text)
		must(t, err)
		return n
	}
	seed, only := uint64(number("SEED", int(time.Now().UnixNano()&0xffffff))), number("ROUND", -1)
	t.Logf("SEED=%d", seed)
	c := newChaos(t)
	began := time.Now()
	for round := 0; c.steps < number("CHAOS", testkit.Fewer(chaosSteps)) && !t.Failed(); round++ {
		r := c.draw(seed, round)
		c.steps += len(r.steps)
		if only < 0 || round == only {
			t.Run(r.String(), r.run)
		}
	}
	t.Logf("%d steps in %v, faults: %v; ends: %v", c.steps, time.Since(began).Round(time.Second), c.faults, c.ends)
	if len(c.ends) < 2 && only < 0 {
		t.Errorf("all ended alike: %v", c.ends)
	}
}

// chaos is a node, and what happened on it.
type chaos struct {
	n            *node
	steps        int
	faults, ends map[string]int
	pmi          string
}

func newChaos(t *testing.T) *chaos {
	n := startNode(t, site{Slurm: quickKill, Stepd: "KeepSteps=1000\n"})
	n.kill9(t)
	// A spool that can be full. It is unmounted before noded's files are looked for.
	must(t, unix.Mount("spool", n.path("spool"), "tmpfs", 0, "size=24m,mode=0711"))
	t.Cleanup(func() {
		n.idle(t)
		must(t, n.cmd.Process.Signal(unix.SIGTERM)) // before its spool goes
		<-n.done
		must(t, unix.Unmount(n.path("spool"), unix.MNT_DETACH))
	})
	n.boot(t)
	return &chaos{n: n, faults: map[string]int{}, ends: map[string]int{}, pmi: pmi1(t, "hello\n")}
}

// chaosStep is a step as it was asked for. Its tasks write down what they do.
type chaosStep struct {
	name  string
	kind  string
	tasks int
	codes []int // of the tasks
	sleep time.Duration
	dir   string // of what they write down
	p     *process
	said  result
}

// chaosKinds are the kinds of steps: what stepctl is called with for a script.
var chaosKinds = map[string]func(s *chaosStep, bin, script string) []string{
	"run": func(s *chaosStep, _, script string) []string {
		return []string{"run", "-J", s.name, "-n", strconv.Itoa(s.tasks), "bash", "-c", script}
	},
	"pmi2": func(s *chaosStep, _, script string) []string {
		return []string{"run", "-J", s.name, "-n", strconv.Itoa(s.tasks), "--mpi=pmi2", "bash", "-c", script}
	},
	"pmix": func(s *chaosStep, _, script string) []string {
		return []string{"run", "-J", s.name, "-n", strconv.Itoa(s.tasks), "--mpi=pmix", "bash", "-c", script}
	},
	"batch": func(s *chaosStep, _, script string) []string {
		return []string{"batch", "-J", s.name, "-W", "-o", "/dev/null", "--wrap", script}
	},
	"alloc": func(s *chaosStep, bin, script string) []string {
		return []string{"alloc", "-Q", bin, "run", "-J", s.name, "bash", "-c", script}
	},
}

// chaosRound is a few steps at once, and a fault.
type chaosRound struct {
	*chaos
	number int
	steps  []*chaosStep
	fault  string
	after  time.Duration
	random *rand.Rand
}

func (r *chaosRound) String() string {
	var kinds []string
	for _, s := range r.steps {
		kinds = append(kinds, s.kind)
	}
	return fmt.Sprintf("%d: %s after %v, %s", r.number, r.fault, r.after, strings.Join(kinds, " "))
}

// draw draws a round. The same seed and number give the same.
func (c *chaos) draw(seed uint64, number int) *chaosRound {
	r := &chaosRound{chaos: c, number: number, random: rand.New(rand.NewPCG(seed, uint64(number)))}
	r.fault = chaosFaults[r.random.IntN(len(chaosFaults))]
	kinds := []string{"run", "pmi2", "pmix", "batch", "alloc"}
	for i := range 1 + r.random.IntN(chaosAtOnce) {
		s := &chaosStep{
			name: fmt.Sprintf("chaos-%d-%d", number, i), kind: kinds[r.random.IntN(len(kinds))], tasks: 1,
			sleep: time.Duration(r.random.IntN(150)) * time.Millisecond,
		}
		if i == 0 && strings.HasSuffix(r.fault, " pmixhost") { // else there may be none
			s.kind = "pmix"
		}
		s.dir = filepath.Join(c.n.wd, s.name)
		if s.kind != "batch" && s.kind != "alloc" {
			s.tasks += r.random.IntN(4)
		}
		for range s.tasks {
			s.codes = append(s.codes, r.random.IntN(3)*r.random.IntN(2))
		}
		r.steps = append(r.steps, s)
	}
	r.after = time.Duration(r.random.Int64N(int64(chaosWithin))).Round(100 * time.Microsecond)
	return r
}

// chaosFaults are a verb and its victim. TestRootUnkillable skips where no mount can hang.
var chaosFaults = []string{
	"kill noded", "kill stepd", "kill spankhost", "kill pmixhost", "kill stepctl",
	"segfault noded", "segfault stepd", "segfault spankhost", "segfault pmixhost", "segfault stepctl",
	"stop noded", "stop stepd", "stop spankhost", "stop pmixhost", "stop stepctl", "silence stepd",
	"fill spool", "damage spool", "damage run", "hang mount",
}

// script is what each task runs.
func (s *chaosStep) script(pmi string) string {
	var b strings.Builder
	if s.kind == "pmi2" {
		b.WriteString(pmi)
	}
	fmt.Fprintf(&b, "w=%s/$SLURM_PROCID\n>$w.began\nset -- %s\nshift $SLURM_PROCID\nsleep %.3f\n>$w.ended.$1\nexit $1\n",
		s.dir, strings.Trim(fmt.Sprint(s.codes), "[]"), s.sleep.Seconds())
	return b.String()
}

func (r *chaosRound) run(t *testing.T) {
	n := r.n
	for _, s := range r.steps {
		must(t, os.Mkdir(s.dir, 0o777))
		must(t, os.Chmod(s.dir, 0o777))
		s.p = n.start(t, call{args: chaosKinds[s.kind](s, n.bin, s.script(r.pmi)), limit: 2 * callTimeout})
	}
	time.Sleep(r.after) // a moment that was drawn
	undo := r.strike(t)
	for _, s := range r.steps {
		s.said = s.p.wait(t)
	}
	undo()
	if n.exited() {
		n.boot(t)
	}
	eventually(t, callTimeout, "the node takes steps", func() error {
		if doc := n.status(t); doc.State == "DRAINED" || doc.State == "DRAINING" {
			r.drained(t, doc.Reason)
			_ = n.ctlRoot(t, "node", "resume") // what is left may still hold it
			return errors.New(doc.Reason)
		}
		return nil
	})
	n.idle(t)
	records := map[string][]stepDoc{}
	for _, d := range n.ps(t, "--all") {
		records[d.Name] = append(records[d.Name], d)
	}
	for _, s := range r.steps {
		if err := r.judge(s, records[s.name]); err != nil {
			t.Errorf("%s of %s: %v\nrecords %+v\nwritten down %v\nclient %v", s.name, s.kind, err, records[s.name], s.written(), s.said)
		}
	}
	r.clean(t)
	n.serves(t)
	r.faults[r.fault]++
}

// clean is checkClean, but for the mount of the spool.
func (r *chaosRound) clean(t *testing.T) {
	t.Helper()
	var left []string
	for end := time.Now().Add(goneWithin); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		left = slices.DeleteFunc(r.n.leftovers(), func(s string) bool { return s == "mount "+r.n.path("spool") })
		if len(left) == 0 {
			return
		}
	}
	t.Errorf("left behind:\n  %s", strings.Join(left, "\n  "))
}

// drained fails the test where the node is drained and nothing says why it should be.
func (r *chaosRound) drained(t *testing.T, reason string) {
	t.Helper()
	because := map[string][]string{
		"fill spool": {"spool", "no space"}, "damage spool": {"damage"}, "damage run": {"damage"}, "hang mount": {"unkillable", "left", "kill"},
	}[r.fault]
	if because == nil { // a required plugin or helper that died with a kill
		because = []string{"SIGKILL", "SIGSEGV", "spankhost", "stepd", "pmixhost"}
	}
	if !slices.ContainsFunc(because, func(word string) bool { return strings.Contains(reason, word) }) {
		t.Errorf("the node is drained: %q", reason)
	}
}

// strike makes the fault, and returns what ends it, when the clients have ended.
func (r *chaosRound) strike(t *testing.T) (undo func()) {
	t.Helper()
	verb, victim, _ := strings.Cut(r.fault, " ")
	switch verb {
	case "kill":
		r.signal(t, victim, unix.SIGKILL)
	case "segfault":
		r.signal(t, victim, unix.SIGSEGV)
	case "stop":
		if pid := r.signal(t, victim, unix.SIGSTOP); pid != 0 {
			time.Sleep(time.Duration(r.random.IntN(300)) * time.Millisecond)
			_ = syscall.Kill(pid, unix.SIGCONT) // it may have been killed
		}
	case "silence":
		r.silence(t, victim)
	case "fill":
		return r.fill(t)
	case "damage":
		r.damage(t, victim)
	case "hang":
		r.hang(t)
	}
	return func() {}
}

// signal signals one process of that name, if there is one, and returns its pid.
func (r *chaosRound) signal(t *testing.T, victim string, signal syscall.Signal) int {
	t.Helper()
	pid := 0
	switch victim {
	case "noded":
		pid = r.n.cmd.Process.Pid
	case "stepctl":
		pid = r.steps[r.random.IntN(len(r.steps))].p.cmd.Process.Pid
	default:
		var found []int
		for _, p := range r.n.processes() {
			if strings.HasPrefix(p.comm, victim) && p.comm != "stepd-keeper" {
				found = append(found, p.pid)
			}
		}
		if len(found) > 0 {
			pid = found[r.random.IntN(len(found))]
		}
	}
	if pid == 0 || syscall.Kill(pid, signal) != nil { // too early, or too late
		return 0
	}
	if victim == "noded" && signal != unix.SIGSTOP {
		<-r.n.done
		r.n.boot(t)
	}
	return pid
}

// silence stops a stepd for good, and has its step cancelled: after UnkillableStepTimeout it is killed
// with its step, and the record says so.
func (r *chaosRound) silence(t *testing.T, victim string) {
	t.Helper()
	pid := r.signal(t, victim, unix.SIGSTOP)
	if pid == 0 {
		return
	}
	eventually(t, callTimeout, "a stopped stepd", func() error { return standsStill(pid) })
	steps := r.n.ps(t)
	i := slices.IndexFunc(steps, func(d stepDoc) bool { return d.StepdPID == pid })
	if i < 0 { // its step has ended
		_ = syscall.Kill(pid, unix.SIGCONT) // it may have been killed
		return
	}
	id := steps[i].id()
	said := r.n.ctlRoot(t, "cancel", id)
	doc := r.n.ended(t, id)
	told := strings.Contains(said.err, fmt.Sprintf("stepd of step %s (pid %d) does not answer", id, pid))
	r.faults[fmt.Sprintf("%s, told %v", r.fault, told)]++
	if said.code != 0 || told && (doc.State != "CANCELLED" || !strings.HasSuffix(doc.Reason, fmt.Sprintf("stepd (pid %d) did not answer for 1s and was killed", pid))) {
		t.Errorf("step %s of a stepd that was stopped is %s, %q: %v", id, doc.State, doc.Reason, said)
	}
}

// fill takes all the room of the spool.
func (r *chaosRound) fill(t *testing.T) (undo func()) {
	t.Helper()
	path := r.n.path("spool", "filler")
	f, err := os.Create(path)
	must(t, err)
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	f.Close()
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("the spool is not full: %v", err)
	}
	return func() { must(t, os.Remove(path)) }
}

// damage changes a few bytes of a journal while noded is down.
func (r *chaosRound) damage(t *testing.T, which string) {
	t.Helper()
	r.n.kill9(t)
	path := map[string]string{"spool": r.n.path("spool", "durable.journal"), "run": filepath.Join(r.n.run, "volatile.journal")}[which]
	text, err := os.ReadFile(path)
	must(t, err)
	for at := r.random.IntN(max(1, len(text))); at < len(text); at += len(text)/3 + 1 {
		text[at] ^= byte(1 + r.random.IntN(255))
	}
	must(t, os.WriteFile(path, text, 0o600))
	r.n.boot(t)
}

// hang has one step more wait for a file that never answers, and cancels it.
func (r *chaosRound) hang(t *testing.T) {
	t.Helper()
	h := r.n.mountHang(t)
	defer func() {
		h.end()
		must(t, os.Remove(h.dir))
	}()
	p := r.n.start(t, call{args: []string{"run", "-J", "hanging", "cat", h.file()}})
	doc := r.n.runs(t, "hanging")
	ok(t, "cancel", r.n.ctl(t, "cancel", doc.id()))
	if r := p.wait(t); r.code == 0 {
		t.Errorf("the hanging step: %v", r)
	}
	if doc = r.n.ended(t, doc.id()); doc.State != "CANCELLED" {
		t.Errorf("the hanging step: %+v", doc)
	}
}

// written are the names of the files that the step's tasks have made.
func (s *chaosStep) written() (names []string) {
	entries, _ := os.ReadDir(s.dir) // none is none
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// judge compares what is recorded and what the client was told with what the tasks did.
func (r *chaosRound) judge(s *chaosStep, records []stepDoc) error {
	written := s.written()
	did := func(rank int, what string) bool { return slices.Contains(written, fmt.Sprintf("%d.%s", rank, what)) }
	whole := func() error {
		for rank, code := range s.codes {
			if !did(rank, fmt.Sprintf("ended.%d", code)) {
				return fmt.Errorf("rank %d has not come to its end", rank)
			}
		}
		return nil
	}
	if s.said.code == 0 {
		if err := whole(); err != nil || slices.Max(s.codes) > 0 {
			return fmt.Errorf("the client ended with 0: %w", err)
		}
	}
	if len(records) == 0 {
		r.ends["no record"]++
		if len(written) > 0 && !strings.HasPrefix(r.fault, "damage") {
			return errors.New("tasks ran, and there is no record")
		}
		return nil
	}
	for _, d := range records {
		r.ends[d.State]++
		if d.End == nil {
			return fmt.Errorf("%s is %s", d.id(), d.State)
		}
		if d.State == "COMPLETED" {
			if err := whole(); err != nil || slices.Max(s.codes) > 0 {
				return fmt.Errorf("%s is COMPLETED: %w", d.id(), err)
			}
		}
		for _, task := range d.Tasks {
			switch {
			case task.State == "EXITED" && task.ExitCode != nil && !did(task.Rank, fmt.Sprintf("ended.%d", *task.ExitCode)):
				return fmt.Errorf("%s: rank %d is said to have ended with %d", d.id(), task.Rank, *task.ExitCode)
			case task.State == "FAILED" && did(task.Rank, "began"):
				return fmt.Errorf("%s: rank %d is said to be FAILED in %q, and it began", d.id(), task.Rank, task.Stage)
			case task.State != "EXITED" && task.State != "FAILED" && task.State != "PENDING":
				return fmt.Errorf("%s: rank %d is %s", d.id(), task.Rank, task.State)
			}
		}
	}
	return nil
}
