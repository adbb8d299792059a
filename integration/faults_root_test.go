package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
)

// faultWait is how long anything of a point may take.
var faultWait = 20 * time.Second * time.Duration(testkit.Slower())

// TestRootFaults kills each process at every phase of a step: nothing is left, and the
// record says what happened. FAULTS is how often; each round spreads the kinds of steps
// otherwise over the moments. ONLY is a part of the names of the points to try.
func TestRootFaults(t *testing.T) {
	rounds, only := 1, os.Getenv("ONLY")
	if text := os.Getenv("FAULTS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatalf("FAULTS=%q: %v", text, err)
		}
	}
	testkit.RequireRoot(t)
	var holding string
	if !testkit.InGuest() { // which has no compiler
		holding = buildHolding(t)
	}
	for round := range rounds {
		lanes := faultLanes(round)
		if testkit.InGuest() {
			lanes = fewFaults(lanes)
		}
		var points int
		var hits atomic.Int32
		var wg sync.WaitGroup
		began := time.Now()
		for _, lane := range lanes {
			lane.points = slices.DeleteFunc(lane.points, func(f fault) bool { return !strings.Contains(f.String(), only) })
			if len(lane.points) == 0 {
				continue
			}
			points += len(lane.points)
			wg.Go(func() {
				t.Run(fmt.Sprintf("round %d/%s", round, lane.name), func(t *testing.T) { lane.run(t, holding, &hits) })
			})
		}
		wg.Wait()
		t.Logf("round %d: %d points in %v; %d of them were hit: the process was there, and the moment not over", round, points, time.Since(began).Round(time.Second), hits.Load())
		if !testkit.InGuest() && only == "" && points < 200 {
			t.Errorf("%d points: want at least 200", points)
		}
		if int(hits.Load())*100 < points*leastHits {
			t.Errorf("%d of %d points were hit: want at least %d %%", hits.Load(), points, leastHits)
		}
	}
}

// leastHits is how many of a hundred points must be hit, for the others to say something.
const leastHits = 80

// fewFaults are twenty lanes that need no stepd of their own.
func fewFaults(lanes []faultLane) []faultLane {
	var few []faultLane
	for _, lane := range lanes {
		if lane.held {
			continue
		}
		all := lane.points
		lane.points = nil
		for i := range 10 {
			lane.points = append(lane.points, all[i*len(all)/10])
		}
		few = append(few, lane)
	}
	return few
}

// buildHolding makes a folder of the programs with a stepd that stops at the named line.
func buildHolding(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(workRoot, "stepd-it-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	for _, name := range []string{"noded", "spankhost", "pmixhost"} {
		b, err := os.ReadFile(binary(t, name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(dir, name), b, 0o755))
	}
	build := exec.Command("go", "build", "-tags", "failpoint", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/stepd")
	build.Dir, build.Env = "..", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return dir
}

func (l faultLane) run(t *testing.T, holding string, hits *atomic.Int32) {
	s := site{Slurm: "KillWait=1\n"}
	if l.held {
		s.Before = []string{"sh", "-c", `shift; exec ` + holding + `/noded "$@"`, "sh"}
	}
	n := startNode(t, s)
	conf := "KillWait=1\n"
	if l.conf != nil {
		conf += l.conf(t, n)
	}
	n.stack(t, "required "+buildRude(t, n)+" order=RUDE")
	n.restartWith(t, conf) // with plugins it has a host of its own, from its start on
	pmi := pmi1(t, "")
	// What is made once.
	once := [][]string{{"batch", "-W", "-o", "/dev/null", "--wrap", "true"}}
	if l.held { // the others have no PMIx
		once = append(once, []string{"run", "--mpi=pmix", "true"})
	}
	for _, args := range once {
		ok(t, args[0], n.ctl(t, args...))
	}
	n.idle(t)
	n.checkClean(t)
	before := n.footprint(t)
	for i, f := range l.points {
		if n.exited() { // by itself: the rest would wait for it in vain
			t.Fatal("noded has ended")
		}
		t.Run(f.String(), func(t *testing.T) {
			p := &faultRun{fault: f, n: n, held: l.held && f.at.line != "", gate: filepath.Join(n.wd, fmt.Sprintf("gate.%d", i)), marks: n.path(fmt.Sprintf("marks.%d", i))}
			if p.run(t, pmi) {
				hits.Add(1)
			} else {
				t.Logf("%s: too late", f)
			}
		})
	}
	n.serves(t)
	n.idle(t)
	// Connections of clients that have just gone are closed a little later.
	eventually(t, faultWait, "as much as before", func() error {
		after := n.footprint(t)
		if after.moreThan(before) {
			open, err := n.descriptors()
			return fmt.Errorf("before %+v, after %+v\n%v %v", before, after, open, err)
		}
		return nil
	})
}

// faultRun is one point as it is tried.
type faultRun struct {
	fault
	n           *node
	held        bool // stepd stops at the moment
	gate, marks string
	id          string
	hit, died   bool
	result      result
	doc         stepDoc
}

// run starts the step, kills at the moment, lets the rest go on, and looks at the
// result. It reports whether the process existed and was killed.
func (f *faultRun) run(t *testing.T, pmi string) bool {
	must(t, unix.Mkfifo(f.gate, 0o666))
	must(t, os.Chmod(f.gate, 0o666))
	gate, err := os.OpenFile(f.gate, os.O_RDWR, 0)
	must(t, err)
	defer gate.Close()
	open := sync.OnceFunc(func() {
		_, err := gate.WriteString(gateLines)
		must(t, err)
	})
	env := []string{"GATE=" + f.gate}
	release := func() {}
	if f.held {
		stop := f.at.line
		if f.at.phase == phaseEarly { // there is no stepd yet: it comes no further than to its first line
			stop = f.at.next
		}
		env = append(env, "STEPD_STOP="+stop, "STEPD_STOP_FIFO="+f.gate+".stop")
		release = holdAt(t, f.gate+".stop")
		defer release()
	}
	if f.at.hook != "" {
		must(t, os.WriteFile(f.marks, nil, 0o666))
		must(t, os.Chmod(f.marks, 0o666))
		env = append(env, fmt.Sprintf("RUDE=hook=%s do=hang mark=%s", f.at.hook, f.marks))
	}
	if f.at.script != "" {
		f.n.userFile(t, f.at.script+".hang", "", 0o644)
	}
	w := watchLogs(t, f.n)
	defer w.close()
	p := f.n.start(t, call{args: f.kind.args(f.n, pmi), env: env})
	v := &victims{noded: f.n.cmd.Process.Pid, stepctl: p.cmd.Process.Pid}
	f.await(t, w, v, open)
	f.id = w.id
	over := w.over(f.at)
	f.hit, err = v.kill(f.victim)
	must(t, err)
	if f.at.script != "" {
		f.endScript(t)
	}
	if f.victim == "noded" {
		<-f.n.done
		f.died = killed(f.n.cmd.ProcessState)
		if len(f.kind.name)%2 == 0 { // of half of the steps the next one finds that they stand there
			release()
		}
		f.n.boot(t)
	}
	release()
	if f.victim != "stepd" && f.victim != "spankhost" && f.victim != "pmixhost" { // with these the tasks end
		open()
	}
	f.result = p.wait(t)
	if f.victim == "stepctl" {
		f.died = killed(p.cmd.ProcessState)
	}
	eventually(t, faultWait, f.String()+": the final record of "+f.id, func() error {
		if f.doc = f.n.show(t, f.id); f.doc.End == nil {
			return fmt.Errorf("state %s, no end_time", f.doc.State)
		}
		return nil
	})
	f.judge(t)
	f.n.idle(t)
	f.undrain(t)
	f.n.checkClean(t)
	if f.victim == "noded" || f.victim == "stepctl" { // till they are waited for, a kill finds them
		f.hit = f.hit && f.died
	}
	return f.hit && !over
}

// killed reports whether SIGKILL has ended a process.
func killed(s *os.ProcessState) bool {
	ws, ok := s.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// holdAt makes the FIFO at which stepd stops, and returns what lets it go on.
func holdAt(t *testing.T, path string) func() {
	must(t, unix.Mkfifo(path, 0o600))
	fifo, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	t.Cleanup(func() { fifo.Close() }) // stepd may not have opened it yet: the line stays as long as it is open
	return sync.OnceFunc(func() {
		_, err := fifo.WriteString("\n")
		must(t, err)
	})
}

// await returns at the moment.
func (f *faultRun) await(t *testing.T, w *logWatch, v *victims, open func()) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%s: it did not come", f.fault)
		}
	}()
	look := func() { v.look(w) }
	if f.at.phase == phaseEnding {
		must(t, w.until(`"state":"RUNNING"`, faultWait, look))
		open()
	}
	switch {
	case f.at.line != "":
		must(t, w.until(f.at.line, faultWait, look))
		return
	case f.at.hook != "":
		must(t, w.until(`"stage_end","phase":"spankhost"`, faultWait, look))
		eventually(t, faultWait, "the hook", func() error {
			if !strings.Contains(readFile(t, f.marks), " "+f.at.hook+" ") {
				return fmt.Errorf("marks: %q", readFile(t, f.marks))
			}
			return nil
		})
		return
	}
	line := `"stage_end","phase":"spankhost"`
	if f.at.script == "prolog" {
		line = `"accepted"`
	}
	must(t, w.until(line, faultWait, look))
	eventually(t, faultWait, "the script", func() error {
		b, err := os.ReadFile(filepath.Join(f.n.wd, f.at.script+".pid"))
		if err != nil {
			return err
		}
		_, err = fmt.Sscan(string(b), &v.script)
		return err
	})
}

// endScript lets the script hang no more, whichever process was killed.
func (f *faultRun) endScript(t *testing.T) {
	must(t, os.Remove(filepath.Join(f.n.wd, f.at.script+".hang")))
	must(t, os.Remove(filepath.Join(f.n.wd, f.at.script+".pid")))
}

// undrain takes back what a failed prolog or epilog does to the node, and a plugin that
// keeps a batch job from starting.
func (f *faultRun) undrain(t *testing.T) {
	doc := f.n.status(t)
	script, plugin := f.victim == f.at.script && (f.victim == "prolog" || f.victim == "epilog"), f.victim == "spankhost" && f.at.hook != "" && f.kind.job
	switch {
	case script:
		contains(t, "the drain's reason", doc.State+": "+doc.Reason, "DRAINED", f.victim, "SIGKILL")
	case plugin && beforeGate(f.at.hook):
		contains(t, "the drain's reason", doc.State+": "+doc.Reason, "DRAINED", "rude.so", f.at.hook)
	case doc.State != "IDLE":
		t.Errorf("node %s: %q", doc.State, doc.Reason)
	}
	if doc.State != "IDLE" {
		ok(t, "node resume", f.n.ctlRoot(t, "node", "resume"))
	}
}

// faultEnd is how a step may end.
type faultEnd struct {
	states []string
	words  []string // of the reason
	codes  []int    // of the client
}

// judge compares the record and the client's exit code with what may have come of it.
func (f *faultRun) judge(t *testing.T) {
	t.Helper()
	ends := f.ends()
	for _, e := range ends {
		if slices.Contains(e.states, f.doc.State) && slices.Contains(e.codes, f.result.code) &&
			!slices.ContainsFunc(e.words, func(w string) bool { return !strings.Contains(f.doc.Reason, w) }) {
			f.checkRecord(t)
			return
		}
	}
	t.Errorf("%s: step %s (the process was there: %v): state %s, reason %q, %v; want one of %+v", f.fault, f.id, f.hit, f.doc.State, f.doc.Reason, f.result, ends)
}

// checkRecord: no task is left running in it, and the log has an end.
func (f *faultRun) checkRecord(t *testing.T) {
	t.Helper()
	for _, task := range f.doc.Tasks {
		if task.State != "EXITED" && task.State != "FAILED" {
			t.Errorf("%s: task %d of %s is %s", f.fault, task.Rank, f.id, task.State)
		}
	}
	lines := strings.Split(strings.TrimSpace(readFile(t, f.n.path("spool", "events", f.id+".jsonl"))), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, `"event":"end"`) {
		t.Errorf("%s: the event log of %s ends with %s", f.fault, f.id, last)
	}
}
