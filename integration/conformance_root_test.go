package integration

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// traceDir rewrites testdata/traces from the raw traces: the facts in there
// were made by the same reduction as ours are.
var traceDir = flag.String("reduce-traces", "", "directory with the raw traces to reduce into testdata/traces")

// trace is one recording of the original, and how ours is made.
type trace struct {
	name string
	base string   // the trace whose facts it repeats most of
	args []string // of stepctl
	env  []string
	code int
	// plugins are the tags of the recording plugin's copies; none: one in full.
	plugins []string
	script  string         // a batch script, in place of the last argument
	tables  map[string]int // made of this recording: their numbers of facts
	atLeast int            // facts
}

var traces = []trace{
	{name: "srun3", args: []string{"run", "-n3", "env"}, atLeast: 5000},
	{name: "srun1", base: "srun3", args: []string{"run", "-n1", "true"}, atLeast: 3000},
	{name: "fail7", base: "srun1", args: []string{"run", "-n1", "sh", "-c", "exit 7"}, code: 7, atLeast: 3000},
	{name: "sig9", base: "srun1", args: []string{"run", "-n1", "sh", "-c", "kill -9 $$"}, code: 137, atLeast: 3000},
	{name: "execfail", base: "srun1", args: []string{"run", "-n1", "/no/such/program"}, code: 2, atLeast: 3000},
	{name: "srun_env_opts", base: "srun1", args: []string{"run", "-n1", "env"}, env: []string{"_SLURM_SPANK_OPTION_PNAME_ptab=envv", "_SLURM_SPANK_OPTION_PNAME_pflag=", "_SLURM_SPANK_OPTION_other_zz=1", "SPANK_FOO=bar"}, atLeast: 3000},
	{name: "srun_opts_repeat", base: "srun1", args: []string{"run", "--ptab=first", "--ptab=second", "--preg", "-n1", "true"}, atLeast: 3000},
	{name: "srun_opts", base: "srun3", args: []string{"run", "--ptab=tv", "--pflag", "--preg=rv", "--pregflag", "--pnocb=nn", "-n2", "true"}, atLeast: 4000,
		tables: map[string]int{"table_symbol_supported": 266, "table_items": 630, "table_env": 378, "table_jobcontrol": 238, "table_getopt": 126}},
	{name: "salloc_reg", base: "srun_opts", args: []string{"alloc", "-n2", "--preg=sar", "--pregflag", "STEPCTL", "run", "-n2", "true"}, atLeast: 4700},
	{name: "sbatch_reg", base: "srun_opts", args: []string{"batch", "-n2", "--preg=sbr", "--pregflag", "-o", "WORKDIR/sb.%j.out", "SCRIPT"}, script: "#!/bin/sh\nSTEPCTL run -n2 true\nexit 5\n", atLeast: 6800,
		tables: map[string]int{"table_sbatch_items": 765, "table_sbatch_env": 459, "table_sbatch_jobcontrol": 289, "table_sbatch_getopt": 153}},
	{name: "order3", args: []string{"run", "-n2", "true"}, plugins: []string{"A", "B", "C"}, atLeast: 3100},
}

// TestRootConformance runs what the traces ran, under the recording plugin,
// and compares every fact.
func TestRootConformance(t *testing.T) {
	for _, tr := range traces {
		if *traceDir != "" {
			tr.reduce(t, *traceDir)
		}
		t.Run(tr.name, func(t *testing.T) {
			n := startNode(t, site{})
			ours := reduce(n.record(t, tr), ourWorld(t, n))
			compare(t, tr.name, readTrace(t, tr.name), ours, tr.atLeast)
			for name, cells := range tr.tables {
				t.Run(name, func(t *testing.T) {
					theirs := readTrace(t, name)
					compare(t, name, theirs, tableOf(theirs, ours), cells)
				})
			}
		})
	}
}

// reduce writes the facts of a raw trace and of its tables.
func (tr *trace) reduce(t testing.TB, dir string) {
	t.Helper()
	records := readRecords(t, filepath.Join(dir, tr.name+".jsonl"))
	reduce(records, traceWorld(records)).write(t, tr.name, tr.base)
	for name := range tr.tables {
		reduceTable(t, dir, name, records, traceWorld(records)).write(t, name, "")
	}
}

// record runs the trace's command under the recording plugin, and returns the
// records when the job is over.
func (n *node) record(t testing.TB, tr trace) []record {
	t.Helper()
	file := n.recordFile(t)
	so := buildProbe(t, n, ownHeaders, file)
	stack := "required " + so + " tag=A arg1 arg2=x\n"
	if tr.plugins != nil {
		stack = ""
	}
	for _, tag := range tr.plugins { // a copy has static data of its own
		copied := n.path("probe" + tag + ".so")
		must(t, os.WriteFile(copied, []byte(readFile(t, so)), 0o755))
		stack += "required " + copied + " tag=" + tag + " lite\n"
	}
	n.write(t, "plugstack.conf", stack)
	c := call{env: append([]string{"SLURM_CONF=" + n.path("slurm.conf")}, tr.env...)}
	words := strings.NewReplacer("STEPCTL", n.bin, "WORKDIR", n.wd)
	for _, arg := range tr.args {
		c.args = append(c.args, words.Replace(arg))
	}
	if tr.script != "" {
		c.args[len(c.args)-1] = n.userFile(t, "job.sh", words.Replace(tr.script), 0o755)
	}
	r := n.do(t, c)
	if r.code != tr.code {
		t.Errorf("want exit code %d, got %v", tr.code, r)
	}
	n.idle(t)
	return readRecords(t, file)
}

// recordFile makes the file of the records empty.
func (n *node) recordFile(t testing.TB) string {
	t.Helper()
	file := n.path("record.jsonl")
	must(t, os.WriteFile(file, nil, 0o666))
	must(t, os.Chmod(file, 0o666)) // task_init writes as the user
	return file
}

// buildProbe compiles the recording plugin against a spank.h, with the record
// file in it: its plugstack arguments are then the traces'.
func buildProbe(t testing.TB, n *node, include, recordFile string, flags ...string) string {
	t.Helper()
	so := n.path("probe.so")
	args := append([]string{"-fPIC", "-shared", "-DPROBE_OUT=\"" + recordFile + "\"", "-I", include, "testdata/probe/probe.c", "-o", so}, flags...)
	if include == ownHeaders {
		// The release that the traces' plugin was built for.
		args = append(args, "-DSLURM_VERSION_NUMBER=SLURM_VERSION_NUM(22,5,8)")
	}
	compile(t, args...)
	return so
}

// compiled has what the compiler has made, by its arguments without the name of the file: many
// tests have nodes with the same plugins.
var compiled sync.Map // of func() ([]byte, error)

// compile runs the C compiler with warnings as errors; -o names a file that does not exist, or
// that is made anew.
func compile(t testing.TB, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		missing(t, "no C compiler: apt-get install gcc libc6-dev")
	}
	at := slices.Index(args, "-o") + 1
	out, args := args[at], slices.Concat(args[:at-1], args[at+1:])
	once, _ := compiled.LoadOrStore(strings.Join(args, "\x00"), sync.OnceValues(func() ([]byte, error) { return runCompiler(args) }))
	program, err := once.(func() ([]byte, error))()
	must(t, err)
	if err := os.Remove(out); err != nil && !errors.Is(err, fs.ErrNotExist) { // it may be mapped, or run
		t.Fatal(err)
	}
	// A child that is forked meanwhile would have the file open to write, and it could not be run.
	syscall.ForkLock.RLock()
	err = os.WriteFile(out, program, 0o755)
	syscall.ForkLock.RUnlock()
	must(t, err)
	must(t, os.Chmod(out, 0o755))
}

// runCompiler returns the file that the compiler has made.
func runCompiler(args []string) ([]byte, error) {
	dir, err := os.MkdirTemp(workRoot, "stepd-it-cc-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "out")
	line := slices.Concat([]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"}, args, []string{"-o", file})
	if out, err := exec.Command("cc", line...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cc %v: %w\n%s", args, err, out)
	}
	return os.ReadFile(file)
}

// ownHeaders is where our spank.h is.
const ownHeaders = "../spank/host/include"

// TestRootProbeWithDebianHeader runs the plugin as a site has it: compiled
// against the spank.h of Debian's Slurm.
func TestRootProbeWithDebianHeader(t *testing.T) {
	const debian = "/usr/include"
	if _, err := os.Stat(debian + "/slurm/spank.h"); err != nil {
		missing(t, "no /usr/include/slurm/spank.h: apt-get install libslurm-dev")
	}
	n := startNode(t, site{})
	file := n.recordFile(t)
	n.write(t, "plugstack.conf", "required "+buildProbe(t, n, debian, file)+" tag=A\n")
	r := n.ctl(t, "run", "-n", "2", "true")
	if r.code != 0 || r.out != "" || r.err != "" {
		t.Errorf("stepctl run is silent on success: %v", r)
	}
	n.idle(t)
	records := readRecords(t, file)
	for i := range records {
		if v := records[i].Items["S_SLURM_VERSION"].V; v == nil || !strings.HasPrefix(*v, "22.05") {
			t.Errorf("%s: S_SLURM_VERSION %v: want the release the plugin was built for, 22.05", records[i].column(), v)
		}
	}
	order := &table{}
	orderFacts(order, records)
	for field, row := range order.fields {
		for column, held := range row {
			if held != "yes" {
				t.Errorf("order: %s must come %s", column, field)
			}
		}
	}
	if len(records) != 18 {
		t.Errorf("%d callbacks, want 18", len(records))
	}
}
