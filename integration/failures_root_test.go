package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// failure is one case: a command under a plugin stack.
type failure struct {
	command string // srun, salloc+srun or sbatch
	stack   string // plugstack.conf; PLUGINS is the directory of the plugins
	tasks   int
	args    []string // further options of the outer command
	last    bool     // they are all of its words
	env     []string
	inner   bool // the script starts a step too
	// prepare makes what else the case needs, and returns its undo.
	prepare func(t testing.TB, n *node) func()
}

// stand runs cases side by side, each on a node that it has for itself.
type stand struct {
	nodes []*node
}

// newStand starts nodes that have the recording plugin and its like.
func newStand(t *testing.T, stepdConf string) *stand {
	t.Helper()
	const nodes = 2
	s := &stand{}
	for range nodes {
		n := startNode(t, site{Stepd: stepdConf})
		must(t, os.Mkdir(n.path("plug"), 0o755))
		must(t, os.Mkdir(n.path("inc.d"), 0o755))
		n.buildFailing(t)
		s.nodes = append(s.nodes, n)
	}
	return s
}

// faults are the plugins of testdata/probe/bad.c.
var faults = []string{"NOVER", "WRONGTYPE", "WRONGMAJ", "WRONGMINOR", "NONAME", "NOSPV", "EMPTY", "UNDEF", "UNDEFDATA", "LONGOPT", "OPT75", "BUILTIN", "DUPOPT", "NULLOPT"}

// buildFailing compiles the plugins of the failures.
func (n *node) buildFailing(t testing.TB) {
	t.Helper()
	record := n.recordFile(t)
	probe := func(name string, flags ...string) {
		t.Helper()
		so := buildProbe(t, n, ownHeaders, record, flags...)
		must(t, os.Rename(so, n.path("plug", name)))
	}
	probe("probe.so")
	probe("probeB.so", "-DNO_OPTIONS") // else each option is reported as given twice
	probe("probeC.so", "-DNO_OPTIONS")
	for _, mode := range failureModes {
		probe("probe"+mode+".so", "-DINIT_FAILURE_MODE="+mode)
	}
	n.write(t, "plug/notelf.so", "")
	for _, fault := range faults {
		compile(t, "-fPIC", "-shared", "-I", ownHeaders, "-D"+fault, "testdata/probe/bad.c", "-o", n.path("plug", "bad_"+fault+".so"))
	}
}

// failureModes are the values of slurm_spank_init_failure_mode.
var failureModes = []string{"3011", "3012"}

// run runs the cases, as many side by side as there are nodes, and returns their outcomes. The
// cases are no parallel tests: those that wait for a node would keep other tests waiting.
func (s *stand) run(t *testing.T, cases map[string]failure) map[string]*outcome {
	t.Helper()
	var mu sync.Mutex
	outcomes := map[string]*outcome{}
	todo := make(chan string)
	var wg sync.WaitGroup
	for _, n := range s.nodes {
		wg.Go(func() {
			for name := range todo {
				t.Run(name, func(t *testing.T) {
					o := n.failure(t, cases[name])
					for range 3 {
						if raced(name, o) {
							o = n.failure(t, cases[name])
						}
					}
					mu.Lock()
					defer mu.Unlock()
					outcomes[name] = o
				})
			}
		})
	}
	for name := range cases {
		todo <- name
	}
	close(todo)
	wg.Wait()
	return outcomes
}

// raced reports whether an outcome is one that a busy machine has now and then: task_post_fork
// fails before the task calls its own hook, or the client has ended before it was told
// why.
func raced(name string, o *outcome) bool {
	switch {
	case strings.HasPrefix(name, "task_post_fork=-1, required"):
		return !slices.Contains(o.callbacks["R"], "task_init_privileged")
	case name == "init_post_opt=-1 remote only, required, srun":
		return !slices.ContainsFunc(o.says, func(line string) bool { return strings.Contains(line, "failed with rc=-1") })
	}
	return false
}

// failure runs one case, and waits until its job is over.
func (n *node) failure(t testing.TB, c failure) *outcome {
	t.Helper()
	must(t, os.Truncate(n.path("record.jsonl"), 0))
	n.write(t, "plugstack.conf", strings.NewReplacer("PLUGINS", n.path("plug"), "ETC", n.dir).Replace(c.stack))
	if c.prepare != nil {
		defer c.prepare(t, n)()
	}
	before, logged := n.jobs(t), len(n.wholeLog(t))
	out := filepath.Join(n.wd, "out")
	_ = os.Remove(out) // of the case before
	r := n.do(t, c.call(t, n))
	o := &outcome{code: fmt.Sprint(r.code), callbacks: map[string][]string{}, options: map[string][]string{}, second: map[string][]string{}, says: n.said(r.err)}
	n.idle(t)
	text := r.out
	if b, err := os.ReadFile(out); err == nil {
		text += string(b)
		o.output = n.said(string(b))
		o.output = slices.DeleteFunc(o.output, func(line string) bool { return line == "batch" || line == "task" })
	}
	for _, word := range []string{"salloccmd", "batch", "task"} {
		if slices.Contains(strings.Split(text, "\n"), word) {
			o.ran = strings.TrimPrefix(o.ran+","+word, ",")
		}
	}
	if o.ran == "" {
		o.ran = "no"
	}
	o.record = n.lastStep(t, before)
	o.job = jobOutcome(o.record)
	o.log = n.wholeLog(t)[logged:]
	for _, rec := range readRecords(t, n.path("record.jsonl")) {
		if rec.CB == "opt_cb" {
			o.options[rec.actor] = append(o.options[rec.actor], rec.option())
		}
		if rec.Tag == "B" {
			o.second[rec.actor] = append(o.second[rec.actor], rec.CB)
		}
		if letter := letters[rec.Ctx]; letter != "" {
			o.callbacks[letter] = append(o.callbacks[letter], rec.CB)
		}
	}
	o.sorted()
	n.drainState(t, o)
	return o
}

// call is the command line of a case.
func (c failure) call(t testing.TB, n *node) call {
	t.Helper()
	tasks := fmt.Sprintf("-n%d", max(c.tasks, 1))
	if c.last {
		return call{args: append([]string{"run"}, c.args...)}
	}
	inner := fmt.Sprintf("exec %s run %s echo task", n.bin, tasks)
	switch c.command {
	case "srun":
		return call{args: append(append([]string{"run"}, c.args...), tasks, "echo", "task"), env: c.env}
	case "salloc+srun":
		return call{args: append(append([]string{"alloc"}, c.args...), tasks, "sh", "-c", "echo salloccmd; "+inner), env: c.env}
	case "sbatch":
		script := "#!/bin/sh\necho batch\n"
		if c.inner {
			script += inner + "\n"
		}
		return call{args: append(append([]string{"batch"}, c.args...), "-W", tasks, "-o", "out", n.userFile(t, "job.sh", script, 0o755)), env: c.env}
	}
	t.Fatalf("no command %q", c.command)
	return call{}
}

// TestRootConformanceFailures runs every measured failure and compares what it does.
func TestRootConformanceFailures(t *testing.T) {
	t.Parallel()
	if *traceDir != "" {
		names, outcomes := reduceFailures(t, *traceDir)
		writeFailures(t, names, outcomes)
	}
	names, theirs := readFailures(t)
	cases := map[string]failure{}
	for _, name := range names {
		c, err := parseCase(name)
		must(t, err)
		cases[name] = c
	}
	ours := newStand(t, "").run(t, cases)
	rules := readSpankTable(t)
	r := newReport(t, "failures")
	for _, name := range names {
		if ours[name] == nil {
			t.Errorf("%s: no outcome", name)
			continue
		}
		want := theirs[name]
		rules.overrule(name, want)
		compareOutcomes(r, name, want, ours[name])
	}
	r.end(1600)
}

// compareOutcomes compares each fact of a case.
func compareOutcomes(r *report, name string, want, got *outcome) {
	r.t.Helper()
	theirs, ours := want.facts(), got.facts()
	var fields []string
	for field := range theirs {
		fields = append(fields, field)
	}
	for field := range ours {
		letter, isCallbacks := strings.CutPrefix(field, "callbacks ")
		if _, known := theirs[field]; known || isCallbacks && slices.Contains(want.callbacks[letter], notRecorded) {
			continue
		}
		fields = append(fields, field)
	}
	slices.Sort(fields)
	for _, field := range fields {
		value := func(facts map[string]string) string {
			if v, ok := facts[field]; ok {
				return v
			}
			return absent
		}
		r.fact(name, name, field, value(theirs), value(ours))
	}
	// Told by salloc, and by alloc, where the job's end comes before the
	// command's: in half of the traces' cases it does.
	timely := func(lines []string) []string {
		return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return strings.HasSuffix(line, " has been revoked.") })
	}
	compareSaid(r, name, "stderr", timely(want.says), timely(got.says))
	compareSaid(r, name, "output", want.output, got.output)
}
