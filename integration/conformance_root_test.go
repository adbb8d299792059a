package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// traceDir rewrites testdata/traces from the raw traces: the facts in there
// were made by the same reduction as ours are.
var traceDir = flag.String("reduce-traces", "", "directory with the raw traces to reduce into testdata/traces")

// traceWorld is where the traces were recorded.
func traceWorld(records []record) *world {
	host := records[0]
	w := &world{
		words: map[string]string{
			"guser1": "USER", "/srv/probe/home/guser1": "HOME", "/srv/probe/wd": "WORKDIR", "/srv/probe/log": "the daemon's",
			"/srv/probe/etc/slurm.conf": "SLURM.CONF", "pipe": "pipe",
		},
		soft: map[string]string{}, daemon: host.Rlimit,
		capBnd: host.Status["CapBnd"], cpus: host.Status["Cpus_allowed_list"],
	}
	for _, entry := range host.JobEnv {
		name, value, _ := strings.Cut(entry, "=")
		if limit, ok := strings.CutPrefix(name, "SLURM_RLIMIT_"); ok && limit != "CORE" && limit != "NOFILE" {
			w.soft[limit] = value
		}
	}
	return w
}

// ourWorld is this machine, as the test's own process knows it: it is noded's
// parent and stepctl's.
func ourWorld(t testing.TB, n *node) *world {
	t.Helper()
	hostname, err := os.Hostname()
	must(t, err)
	w := &world{
		words: map[string]string{
			alice.name: "USER", n.path("home"): "HOME", n.wd: "WORKDIR", n.path("slurm.conf"): "SLURM.CONF", hostname: "vm",
			n.socket(): "SOCKET",
		},
		soft: map[string]string{}, daemon: map[string]string{},
	}
	limits := map[string]int{
		"CPU": unix.RLIMIT_CPU, "FSIZE": unix.RLIMIT_FSIZE, "DATA": unix.RLIMIT_DATA, "STACK": unix.RLIMIT_STACK, "RSS": unix.RLIMIT_RSS,
		"NPROC": unix.RLIMIT_NPROC, "MEMLOCK": unix.RLIMIT_MEMLOCK, "AS": unix.RLIMIT_AS,
	}
	for name, which := range limits {
		var l unix.Rlimit
		must(t, unix.Getrlimit(which, &l))
		w.soft[name] = fmt.Sprint(l.Cur)
		w.daemon[strings.ToLower(name)] = fmt.Sprintf("%d/%d", int64(l.Cur), int64(l.Max))
	}
	status, err := os.ReadFile("/proc/self/status")
	must(t, err)
	for _, line := range strings.Split(string(status), "\n") {
		name, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); name {
		case "CapBnd":
			w.capBnd = value
		case "Cpus_allowed_list":
			w.cpus = value
		}
	}
	return w
}

// buildProbe compiles the recording plugin against a spank.h, with the record
// file in it: its plugstack arguments are then those of the traces.
func buildProbe(t testing.TB, n *node, include, recordFile string) string {
	t.Helper()
	so := n.path("probe.so")
	args := []string{"-fPIC", "-shared", "-DPROBE_OUT=\"" + recordFile + "\"", "-I", include, "testdata/probe/probe.c", "-o", so}
	if include == ownHeaders {
		// The release that the traces' plugin was built for.
		args = append(args, "-DSLURM_VERSION_NUMBER=SLURM_VERSION_NUM(22,5,8)")
	}
	compile(t, args...)
	return so
}

// compile runs the C compiler with warnings as errors.
func compile(t testing.TB, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		missing(t, "no C compiler: apt-get install gcc libc6-dev")
	}
	out, err := exec.Command("cc", append([]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("cc %v: %v\n%s", args, err, out)
	}
}

// ownHeaders is where our spank.h is.
const ownHeaders = "../spank/host/include"

// recordStep runs a command under the probe and returns its records. The
// variables are those that the local part of the recorded system had left.
func recordStep(t testing.TB, n *node, include string, env []string, args ...string) ([]record, result) {
	t.Helper()
	file := n.path("record.jsonl")
	must(t, os.WriteFile(file, nil, 0o666))
	must(t, os.Chmod(file, 0o666)) // task_init writes as the user
	so := buildProbe(t, n, include, file)
	n.write(t, "plugstack.conf", "required "+so+" tag=A arg1 arg2=x\n")
	old := syscall.Umask(0o022)
	defer syscall.Umask(old)
	r := n.do(t, call{args: args, env: append([]string{
		"SLURM_CONF=" + n.path("slurm.conf"),
		"PROBE_PROC_A_init=1", "PROBE_PROC_A_init_post_opt=1", "PROBE_PROC_A_local_user_init=1",
	}, env...)})
	return readRecords(t, file), r
}

// difference is one row of testdata/differences.tsv.
type difference struct {
	trace, callback, field, ours string
	used                         bool
	line                         int
}

func readDifferences(t testing.TB) []*difference {
	t.Helper()
	b, err := os.ReadFile("testdata/differences.tsv")
	must(t, err)
	var rows []*difference
	for i, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		cells := strings.Split(line, "\t")
		if len(cells) != 5 || cells[4] == "" {
			t.Fatalf("differences.tsv:%d: want 5 cells (trace, callback, field, ours, reason), got %d", i+1, len(cells))
		}
		if i > 0 {
			rows = append(rows, &difference{trace: cells[0], callback: cells[1], field: cells[2], ours: cells[3], line: i + 1})
		}
	}
	return rows
}

// TestRootConformanceSrun3 runs the traces' step, three tasks of env, under
// the recording plugin and compares every fact with the trace.
func TestRootConformanceSrun3(t *testing.T) {
	if *traceDir != "" {
		records := readRecords(t, filepath.Join(*traceDir, "srun3.jsonl"))
		must(t, os.MkdirAll("testdata/traces", 0o755))
		reduce(records, traceWorld(records)).write(t, "testdata/traces/srun3.tsv")
	}
	n := startNode(t, site{})
	records, r := recordStep(t, n, ownHeaders, nil, "run", "-n", "3", "env")
	if r.code != 0 || len(records) == 0 {
		t.Fatalf("%d records, %v", len(records), r)
	}
	ours := reduce(records, ourWorld(t, n))
	theirs := readTable(t, "testdata/traces/srun3.tsv")
	compare(t, "srun3", theirs, ours)
	for what, facts := range map[string]*table{"the trace": theirs, "our record": ours} {
		for _, broken := range brokenOrder(facts.columns, 3) {
			t.Errorf("%s: order: %s", what, broken)
		}
	}
}

// compare reports every fact that differs and is not an intended difference.
func compare(t *testing.T, trace string, theirs, ours *table) {
	t.Helper()
	differences := readDifferences(t)
	fields := append(theirs.allFields(), ours.allFields()...)
	slices.Sort(fields)
	fields = slices.Compact(fields)
	columns := append(theirs.allColumns(), ours.allColumns()...)
	slices.Sort(columns)
	columns = slices.Compact(columns)
	var report strings.Builder
	compared, same := 0, 0
	for _, field := range fields {
		if field == "sequence" {
			continue // checked by brokenOrder: the order between tasks is free
		}
		for _, column := range columns {
			want, got := theirs.get(column, field), ours.get(column, field)
			if want == absent && got == absent {
				continue
			}
			compared++
			verdict := "same"
			if want == got {
				same++
			} else if verdict = "intended"; !intended(differences, trace, column, field, got) {
				verdict = "DIFFERS"
				t.Errorf("%s\t%s\ttrace %q\tours %q", column, field, want, got)
			}
			fmt.Fprintf(&report, "%s\t%s\t%s\t%s\t%s\n", verdict, column, field, want, got)
		}
	}
	for _, d := range differences {
		if d.trace == trace && !d.used {
			t.Errorf("differences.tsv:%d: no such difference any more: %s %s %q", d.line, d.callback, d.field, d.ours)
		}
	}
	if testing.Verbose() {
		t.Logf("%d facts, %d the same (verdict, callback, field, trace, ours):\n%s", compared, same, report.String())
	}
	if compared < 2500 {
		t.Errorf("only %d facts compared: the record or the trace is not whole", compared)
	}
}

// intended looks for the row of a difference; a row stands for a callback in
// all of its tasks.
func intended(rows []*difference, trace, column, field, got string) bool {
	callback, _, _ := strings.Cut(column, ".")
	callback, _, _ = strings.Cut(callback, "#")
	for _, d := range rows {
		if d.trace == trace && d.callback == callback && d.field == field && d.ours == got {
			d.used = true
			return true
		}
	}
	return false
}

// brokenOrder checks the order of the callbacks of one step with n tasks:
// what spank-behaviour calls barriers.
func brokenOrder(sequence []string, n int) []string {
	var broken []string
	before := func(a, b string) {
		i, j := slices.Index(sequence, a), slices.Index(sequence, b)
		if i < 0 || j < 0 || i > j {
			broken = append(broken, fmt.Sprintf("%s (at %d) must come before %s (at %d)", a, i, b, j))
		}
	}
	before("init", "init_post_opt")
	before("init_post_opt", "user_init")
	for i := range n {
		privileged, postFork := fmt.Sprintf("task_init_privileged.%d", i), fmt.Sprintf("task_post_fork.%d", i)
		before("user_init", privileged)
		before("user_init", postFork)
		if i > 0 {
			before(fmt.Sprintf("task_post_fork.%d", i-1), postFork)
		}
		for j := range n {
			// No task goes on before every post_fork has returned.
			before(postFork, fmt.Sprintf("task_init.%d", j))
		}
		before(privileged, fmt.Sprintf("task_init.%d", i))
		before(fmt.Sprintf("task_init.%d", i), fmt.Sprintf("task_exit.%d", i))
		before(fmt.Sprintf("task_exit.%d", i), "exit")
	}
	return broken
}

// TestRootProbeWithDebianHeader runs the plugin as a site has it: compiled
// against the spank.h of Debian's Slurm.
func TestRootProbeWithDebianHeader(t *testing.T) {
	const debian = "/usr/include"
	if _, err := os.Stat(debian + "/slurm/spank.h"); err != nil {
		missing(t, "no /usr/include/slurm/spank.h: apt-get install libslurm-dev")
	}
	n := startNode(t, site{})
	records, r := recordStep(t, n, debian, nil, "run", "-n", "2", "true")
	if r.code != 0 || r.out != "" || r.err != "" {
		t.Errorf("stepctl run is silent on success: %v", r)
	}
	var sequence []string
	for i := range records {
		sequence = append(sequence, records[i].column())
		if v := records[i].Items["S_SLURM_VERSION"].V; v == nil || !strings.HasPrefix(*v, "22.05") {
			t.Errorf("%s: S_SLURM_VERSION %v: want the release the plugin was built for, 22.05", records[i].CB, v)
		}
	}
	for _, broken := range brokenOrder(sequence, 2) {
		t.Error(broken)
	}
}

// TestRootTaskExitStatusItem: S_TASK_EXIT_STATUS is the raw wait status
// (traces fail7, sig9, execfail), and task_exit comes for a task that was
// never exec'd too.
func TestRootTaskExitStatusItem(t *testing.T) {
	n := startNode(t, site{})
	for _, c := range []struct {
		name   string
		argv   []string
		status string
		code   int
	}{
		{"exit 7", []string{"sh", "-c", "exit 7"}, "1792", 7},
		{"SIGKILL", []string{"sh", "-c", "kill -9 $$"}, "9", 137},
		{"no such program", []string{"/no/such/program"}, "512", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			records, r := recordStep(t, n, ownHeaders, nil, append([]string{"run", "--"}, c.argv...)...)
			if r.code != c.code {
				t.Errorf("want exit code %d, got %v", c.code, r)
			}
			for i := range records {
				if a := records[i].Items["S_TASK_EXIT_STATUS"]; records[i].CB == "task_exit" {
					if a.RC != 0 || a.V == nil || *a.V != c.status {
						t.Errorf("S_TASK_EXIT_STATUS: rc %d, value %v, want %s", a.RC, a.V, c.status)
					}
					return
				}
			}
			t.Error("task_exit was not called")
		})
	}
}

// TestRootOptionsFromEnvironment: an option that the launching side left in
// the environment reaches the callback and spank_option_getopt, and no task
// sees the variable (trace srun_opts, spank-behaviour §2).
func TestRootOptionsFromEnvironment(t *testing.T) {
	n := startNode(t, site{})
	const prefix = "_SLURM_SPANK_OPTION_PNAME_"
	records, r := recordStep(t, n, ownHeaders, []string{prefix + "ptab=tv", prefix + "pflag=", prefix + "preg=rv"}, "run", "env")
	if r.code != 0 || strings.Contains(r.out, "SPANK_OPTION") {
		t.Errorf("want 0 and no option variable in the task: %v", r)
	}
	b, err := os.ReadFile(n.path("record.jsonl"))
	must(t, err)
	if hits := strings.Count(string(b), `"cb":"opt_cb"`); hits != 3 {
		t.Errorf("option callbacks: got %d, want 3 (ptab, pflag, preg)", hits)
	}
	contains(t, "callbacks", string(b), `"val":41,"optarg":"tv","remote":1`, `"val":42,"optarg":"","remote":1`, `"val":43,"optarg":"rv","remote":1`)
	for i := range records {
		if records[i].CB == "task_init" {
			contains(t, "getopt in task_init", string(records[i].raw["getopt"]), `"ptab":{"rc":0,"optarg":"tv"}`, `"preg":{"rc":0,"optarg":"rv"}`)
		}
	}
}
