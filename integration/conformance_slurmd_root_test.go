package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// slurmdTables were made of the start of slurmd: their numbers of facts.
var slurmdTables = map[string]int{"table_slurmd_items": 44, "table_slurmd_env": 27, "table_slurmd_jobcontrol": 17, "table_slurmd_getopt": 9}

// TestRootConformanceSlurmd: the daemon's own context, from its start to its
// end.
func TestRootConformanceSlurmd(t *testing.T) {
	waits(t)
	tr := trace{name: "slurmd_start", tables: slurmdTables}
	if *traceDir != "" {
		tr.reduce(t, *traceDir)
	}
	n := startNode(t, site{})
	n.shutdown(t)
	file := n.recordFile(t)
	n.write(t, "plugstack.conf", "required "+buildProbe(t, n, ownHeaders, file)+" tag=A arg1 arg2=x\n")
	n.boot(t)
	atStart := readRecords(t, file)
	ours := reduce(atStart, ourWorld(t, n))
	compare(t, tr.name, readTrace(t, tr.name), ours, 180)
	for name, cells := range tr.tables {
		t.Run(name, func(t *testing.T) {
			theirs := readTrace(t, name)
			compare(t, name, theirs, tableOf(theirs, ours), cells)
		})
	}
	if r := n.ctl(t, "run", "true"); r.code != 0 {
		t.Errorf("a step: %v", r)
	}
	n.idle(t)
	n.shutdown(t)
	var own []record
	for _, r := range readRecords(t, file) {
		if r.Ctx == 4 {
			own = append(own, r)
		}
	}
	if len(own) != 2 || own[0].CB != "init" || own[1].CB != "slurmd_exit" || own[0].PID != own[1].PID || own[1].Counters["total"] != 2 {
		t.Errorf("want init and slurmd_exit in one process: %+v", own)
	}
}

// slurmdFailuresFile holds what slurmd did under plugin stacks that fail.
const slurmdFailuresFile = "testdata/traces/slurmd_failures.tsv"

// slurmdOutcome is what the daemon did under a plugin stack.
type slurmdOutcome struct {
	stack     string
	starts    string // yes or no
	callbacks []string
	says      []string // of plugins, in its log
}

var (
	rawStart = regexp.MustCompile(`^slurmd start \[(.*)\] rc=([0-9]+)`)
	rawTime  = regexp.MustCompile(`^\[[^]]*\] `)
)

// reduceSlurmdFailures makes a file of the raw text.
func reduceSlurmdFailures(t testing.TB, dir string) {
	t.Helper()
	names := strings.NewReplacer("/srv/probe/plug", "PLUGINS", "/srv/probe/etc", "ETC")
	var outcomes []*slurmdOutcome
	o := &slurmdOutcome{}
	for _, line := range strings.Split(readFile(t, filepath.Join(dir, "slurmd_failures.txt")), "\n") {
		line = names.Replace(line)
		switch m := rawStart.FindStringSubmatch(line); {
		case m != nil:
			o = &slurmdOutcome{stack: m[1], starts: map[bool]string{true: "yes", false: "no"}[m[2] == "0"]}
			outcomes = append(outcomes, o)
		case strings.HasPrefix(line, "["):
			if line = rawTime.ReplaceAllString(line, ""); !slices.Contains(o.says, line) {
				o.says = append(o.says, line)
			}
		case strings.HasPrefix(line, "A "):
			o.callbacks = append(o.callbacks, strings.Fields(line)[1])
		}
	}
	text := "stack\tstarts\tcallbacks\tlog\n"
	for _, o := range outcomes {
		text += strings.Join([]string{o.stack, o.starts, strings.Join(o.callbacks, " "), strings.Join(o.says, "|")}, "\t") + "\n"
	}
	must(t, os.WriteFile(slurmdFailuresFile, []byte(text), 0o644))
}

// TestRootConformanceSlurmdFailures: what ends the daemon's start, and what
// does not.
func TestRootConformanceSlurmdFailures(t *testing.T) {
	waits(t)
	if *traceDir != "" {
		reduceSlurmdFailures(t, *traceDir)
	}
	n := startNode(t, site{})
	n.shutdown(t)
	file := n.recordFile(t)
	must(t, os.Mkdir(n.path("plug"), 0o755))
	must(t, os.Rename(buildProbe(t, n, ownHeaders, file), n.path("plug", "probe.so")))
	r := newReport(t, "slurmd_failures")
	for _, row := range readTSV(t, slurmdFailuresFile)[1:] {
		stack, says := row[0], strings.FieldsFunc(row[3], func(c rune) bool { return c == '|' })
		must(t, os.Truncate(file, 0))
		line := strings.ReplaceAll(stack, "PLUGINS", n.path("plug"))
		n.write(t, "plugstack.conf", regexp.MustCompile(`fail=(\w+)`).ReplaceAllString(line, "fail=$1=-1")+"\n")
		o := n.tryStart(t)
		for _, rec := range readRecords(t, file) {
			o.callbacks = append(o.callbacks, rec.CB)
		}
		r.fact(stack, stack, "starts", row[1], o.starts)
		r.fact(stack, stack, "callbacks", row[2], strings.Join(o.callbacks, " "))
		compareSaid(r, stack, "log", says, o.says)
	}
	r.end(20)
}

// aboutPlugins reports whether a line of noded's log is about plugins.
var aboutPlugins = regexp.MustCompile(`level=(?:error|warning|info) msg="(.*(?:spank|plugin|PLUGINS).*)"$`)

// tryStart starts noded, and ends it where it has started.
func (n *node) tryStart(t testing.TB) *slurmdOutcome {
	t.Helper()
	o := &slurmdOutcome{starts: "no"}
	log := &logBuffer{want: "noded: ready", seen: make(chan struct{})}
	cmd := exec.Command(binary(t, "noded"), "-f", n.path("slurm.conf"), "--run-dir", n.run, "--spool-dir", n.path("spool"))
	cmd.Stdout, cmd.Stderr = log, log
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-log.seen:
		o.starts = "yes"
		must(t, cmd.Process.Signal(syscall.SIGTERM))
		<-ended
	case <-ended:
	case <-time.After(callTimeout):
		_ = cmd.Process.Kill() // the test fails either way
		t.Fatalf("noded neither ready nor ended after %v:\n%s", callTimeout, log)
	}
	if code := cmd.ProcessState.ExitCode(); (code == 0) != (o.starts == "yes") {
		t.Errorf("noded: exit code %d, started: %s", code, o.starts)
	}
	for _, line := range strings.Split(n.names().Replace(log.String()), "\n") {
		if m := aboutPlugins.FindStringSubmatch(line); m != nil {
			o.says = append(o.says, strings.ReplaceAll(m[1], `\"`, `"`))
		} else if line != "" && !strings.HasPrefix(line, "time=") {
			o.says = append(o.says, line)
		}
	}
	slices.Sort(o.says)
	o.says = slices.Compact(o.says)
	return o
}

// TestRootConformanceInitFailureMode: what a required plugin's failing slurm_spank_init
// counts as is the plugin's own word (25.05): 3011 blames the node, 3012 the
// job.
func TestRootConformanceInitFailureMode(t *testing.T) {
	waits(t)
	cases, wants := map[string]failure{}, map[string][3]string{}
	for _, mode := range failureModes {
		for _, command := range []string{"srun", "salloc+srun", "sbatch"} {
			for _, flag := range []string{"required", "optional"} {
				name := fmt.Sprintf("mode %s, %s, %s", mode, flag, command)
				cases[name] = failure{command: command, stack: flag + " PLUGINS/probe" + mode + ".so tag=A lite fail=init=-1@2\n"}
				switch {
				case flag == "optional":
					wants[name] = [3]string{"0", "idle", "completed"}
				case mode == "3011":
					wants[name] = [3]string{"1", "drained", "failed"}
				default:
					wants[name] = [3]string{"1", "idle", "failed"}
				}
			}
		}
	}
	outcomes := newStand(t, "").run(t, cases)
	for name, want := range wants {
		o := outcomes[name]
		if o == nil {
			t.Errorf("%s: no outcome", name)
			continue
		}
		state, reason, _ := strings.Cut(o.node, ": ")
		if got := [3]string{o.code, state, o.job}; got != want {
			t.Errorf("%s: exit code, node and job %q, want %q (reason %q, stderr %q)", name, got, want, reason, o.says)
		}
	}
}
