package srunopt

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"stepd/step"
)

// Validate checks all that can be told from the request alone. It returns a
// *FieldError for the first bad field. What depends on the node or the caller
// (who may name a user, how many CPUs there are) is noded's to check.
func Validate(r *step.Request) error {
	for _, check := range []func(*step.Request) error{
		checkIdentity, checkCounts, checkMemory, checkRequestGres, checkArgv, checkApps, checkRequestEnv, checkPlace, checkStreams, checkTerminal, checkWords, checkSpank, checkBinding, checkTime, checkTaskScripts, checkInteractive, checkNumbers,
	} {
		if err := check(r); err != nil {
			return err
		}
	}
	return nil
}

func checkIdentity(r *step.Request) error {
	if r.Schema != step.Schema {
		return bad("schema", "%d is not supported: this side speaks %d", r.Schema, step.Schema)
	}
	if r.Job != nil && *r.Job == 0 {
		return bad("job", "0 is not a job id: they begin at 1")
	}
	// (uid_t)-1 means "leave as it is" to setresuid(2): it must never get there.
	const none = ^uint32(0)
	if r.UID != nil && *r.UID == none {
		return bad("uid", "%d is not a user id", none)
	}
	if r.GID != nil && *r.GID == none {
		return bad("gid", "%d is not a group id", none)
	}
	return nil
}

func checkCounts(r *step.Request) error {
	for _, n := range []struct {
		field, of   string
		value, most int
	}{
		{"ntasks", "tasks", r.NTasks, step.TasksMax}, {"nnodes", "nodes", r.NNodes, step.NodesMax}, {"cpus_per_task", "CPUs", r.CPUsPerTask, step.TasksMax},
	} {
		if n.value < 1 {
			return bad(n.field, "%d %s: at least 1 is needed", n.value, n.of)
		}
		if n.value > n.most {
			return bad(n.field, "%d %s: the limit is %d", n.value, n.of, n.most)
		}
	}
	switch {
	case r.ImmediateS != nil && (*r.ImmediateS < WaitForever || *r.ImmediateS > math.MaxInt32): // a Duration holds more
		return bad("immediate_s", "%d s: want 0 to %d, or %d for no limit", *r.ImmediateS, math.MaxInt32, WaitForever)
	case r.AcctgFreq != nil && (*r.AcctgFreq < 0 || *r.AcctgFreq > acctgFreqMax):
		return bad("acctg_freq", "%d s: want 0 to %d", *r.AcctgFreq, acctgFreqMax)
	}
	return nil
}

func checkMemory(r *step.Request) error {
	switch {
	case r.Mem != nil && r.MemPerCPU != nil:
		return bad("mem_mb", "--mem and --mem-per-cpu exclude each other")
	case r.Mem != nil && *r.Mem > MemoryMax:
		return bad("mem_mb", "%d MB is more than any machine has", *r.Mem)
	case r.MemPerCPU != nil && *r.MemPerCPU > MemoryMax/(1<<16):
		return bad("mem_per_cpu_mb", "%d MB is more than any machine has", *r.MemPerCPU)
	}
	return nil
}

func checkRequestGres(r *step.Request) error {
	if err := checkGres(r.Gres); err != nil {
		return bad("gres", "%v", err)
	}
	return nil
}

// checkArgv leaves lengths alone: what the kernel takes depends on the task's
// own limits, and E2BIG of its execve is the answer. noded's limit for the
// whole request bounds them here.
func checkArgv(r *step.Request) error {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return bad("argv", "no command is given")
	}
	for i, a := range r.Argv {
		if strings.IndexByte(a, 0) >= 0 {
			return bad("argv", "argument %d holds a NUL byte", i)
		}
	}
	return nil
}

func checkRequestEnv(r *step.Request) error { return checkEnv(r.Env) }

func checkEnv(env []string) error {
	for i, e := range env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return bad("env", "entry %d (%.40q) is not NAME=VALUE", i, e)
		}
		if strings.IndexByte(e, 0) >= 0 {
			return bad("env", "variable %.80q holds a NUL byte", name)
		}
	}
	return nil
}

func checkPlace(r *step.Request) error {
	if !strings.HasPrefix(r.Cwd, "/") {
		return bad("cwd", "%.80q is not an absolute path", r.Cwd)
	}
	if err := checkPath("cwd", r.Cwd); err != nil {
		return err
	}
	if r.Umask > 0o777 {
		return bad("umask", "%#o is more than 0777", r.Umask)
	}
	return nil
}

func checkStreams(r *step.Request) error {
	for _, s := range []struct {
		field  string
		stream step.Stream
	}{{"stdin", r.Stdin}, {"stdout", r.Stdout}, {"stderr", r.Stderr}} {
		if err := checkStream(s.stream, s.field, r.NTasks); err != nil {
			return err
		}
		if r.Unattended && s.stream.Kind == step.StreamClient {
			return bad(s.field, "kind %q needs a launcher, and the step is unattended", s.stream.Kind)
		}
	}
	return nil
}

func checkStream(s step.Stream, field string, ntasks int) error {
	switch s.Kind {
	case step.StreamClient, step.StreamNull:
	case step.StreamSame:
		if field != "stderr" {
			return bad(field, "kind %q is for stderr only", s.Kind)
		}
	case step.StreamFile:
		if s.Pattern == "" {
			return bad(field, "kind %q needs a pattern", s.Kind)
		}
	default:
		return bad(field, "unknown kind %.40q", string(s.Kind))
	}
	if s.Pattern != "" && s.Kind != step.StreamFile {
		return bad(field, "a pattern goes with kind %q, not %q", step.StreamFile, s.Kind)
	}
	if s.Rank != nil && (*s.Rank < 0 || *s.Rank >= ntasks) {
		return bad(field, "there is no task %d: ranks go from 0 to %d", *s.Rank, ntasks-1)
	}
	return checkPath(field, s.Pattern)
}

// checkWords checks what appears in logs and listings: a newline in it would
// forge a line there.
func checkWords(r *step.Request) error {
	for _, w := range []struct{ field, value string }{
		{"name", r.Name}, {"submit_host", r.SubmitHost}, {"mpi", r.MPI},
	} {
		if len(w.value) > NameMax {
			return bad(w.field, "%d bytes: the limit is %d", len(w.value), NameMax)
		}
		if i := strings.IndexFunc(w.value, unicode.IsControl); i >= 0 {
			return bad(w.field, "control character at byte %d", i)
		}
	}
	return nil
}

func checkPath(field, path string) error {
	if strings.IndexByte(path, 0) >= 0 {
		return bad(field, "holds a NUL byte")
	}
	if len(path) > PathMax {
		return bad(field, "%d bytes: the limit is %d", len(path), PathMax)
	}
	return nil
}

// ValidateSpec checks the request in the spec and what noded decided about it. A
// failure of the latter is noded's bug, never the user's mistake.
func ValidateSpec(s *step.Spec) error {
	if err := Validate(&s.Request); err != nil {
		return err
	}
	switch {
	case s.ID.Job == 0:
		return bad("id", "step %s has no job", s.ID)
	case s.User.UID == ^uint32(0) || s.User.GID == ^uint32(0):
		return bad("user", "uid %d, gid %d cannot be taken on", s.User.UID, s.User.GID)
	case s.NodeName == "":
		return bad("node_name", "is empty")
	case s.Proctrack.Kind == "":
		return bad("proctrack", "has no kind")
	}
	if s.Layout != nil {
		if err := s.Layout.Check(s.NodeID, s.NTasks); err != nil {
			return bad("layout", "%v", err)
		}
	}
	cpus, err := step.ParseCPUList(s.CPUs)
	if err != nil {
		return bad("cpus", "%v", err)
	}
	if len(cpus) != s.NCPUs {
		return bad("ncpus", "%d, but cpus %q names %d", s.NCPUs, s.CPUs, len(cpus))
	}
	return nil
}

// checkInteractive: an allocation's shell is one process, beside all else of the job.
func checkInteractive(r *step.Request) error {
	switch {
	case !r.Interactive:
		return nil
	case r.Job == nil:
		return bad("interactive", "it is a step of a job, and none is named")
	case r.NTasks != 1 || len(r.Apps) > 1:
		return bad("interactive", "%d tasks: it has one", r.NTasks)
	case r.Mem != nil || r.MemPerCPU != nil || len(r.Gres) > 0:
		return bad("interactive", "it has all memory and generic resources of its job, and none of its own")
	}
	return nil
}

// checkNumbers checks the numbers that a controller gives; whether they are free is noded's
// to tell.
func checkNumbers(r *step.Request) error {
	as := r.As
	switch {
	case as == nil:
		return nil
	case as.Job == 0 || as.Job >= step.JobsEnd:
		return bad("id", "%d is no number of a job: want 1 to %d", as.Job, uint32(step.JobsEnd-1))
	case r.Job != nil && *r.Job != as.Job:
		return bad("id", "job %d, and the step is to be one of job %d", as.Job, *r.Job)
	case as.Step != nil && len(r.Script) > 0:
		return bad("id", "a batch step has a number of its own")
	case as.Step != nil && r.Interactive:
		return bad("id", "an interactive step has a number of its own")
	case as.Step != nil && *as.Step >= step.StepsEnd:
		return bad("id", "%d is no number of a step: want 0 to %d", *as.Step, uint32(step.StepsEnd-1))
	}
	return nil
}

// ValidateChange checks the change as Validate checks those fields.
func ValidateChange(c *step.LaunchChange) error {
	if err := checkEnv(c.Env); err != nil {
		return err
	}
	all := slices.Clone(c.JobControl)
	for _, name := range c.JobControlUnset {
		all = append(all, append(slices.Clone(name), '='))
	}
	return checkJobControl(all)
}

func checkSpank(r *step.Request) error {
	if len(r.SpankOptions) > OptionsMax {
		return bad("spank_options", "%d options: the limit is %d", len(r.SpankOptions), OptionsMax)
	}
	type name struct{ plugin, option string }
	seen := make(map[name]bool, len(r.SpankOptions))
	for i, o := range r.SpankOptions {
		if seen[name{o.Plugin, o.Name}] {
			return bad("spank_options", "--%.80s of plugin %.80q is given twice: the last one counts, and goes alone", o.Name, o.Plugin)
		}
		seen[name{o.Plugin, o.Name}] = true
		switch {
		case o.Name == "" || len(o.Name) > NameMax || len(o.Plugin) > NameMax:
			return bad("spank_options", "option %d has a name of %d bytes, its plugin of %d: 1 to %d are allowed", i, len(o.Name), len(o.Plugin), NameMax)
		case strings.ContainsAny(o.Name+o.Plugin, "\x00=\n"):
			return bad("spank_options", "option %d has a name that no plugin can have", i)
		case len(o.Value) > OptionMax:
			return bad("spank_options", "the value of --%.80s has %d bytes: the limit is %d", o.Name, len(o.Value), OptionMax)
		case bytes.IndexByte(o.Value, 0) >= 0:
			return bad("spank_options", "the value of --%.80s holds a NUL byte", o.Name)
		}
	}
	if len(r.Script) > ScriptMax {
		return bad("script", "%d bytes: the limit is %d", len(r.Script), ScriptMax)
	}
	return checkJobControl(r.JobControl)
}

func checkJobControl(env [][]byte) error {
	size, options := 0, 0
	for i, e := range env {
		size += len(e) + 1
		if bytes.HasPrefix(e, []byte(OptionPrefix)) {
			options++
		}
		if at := bytes.IndexByte(e, '='); at <= 0 || bytes.IndexByte(e, 0) >= 0 {
			return bad("job_control", "entry %d (%.40q) is not NAME=VALUE", i, e)
		}
	}
	if options > OptionsMax {
		return bad("job_control", "%d options: the limit is %d", options, OptionsMax)
	}
	if len(env) > jobControlEntries {
		return bad("job_control", "%d variables: the limit is %d", len(env), jobControlEntries)
	}
	if size > jobControlMax {
		return bad("job_control", "%d bytes: the limit is %d", size, jobControlMax)
	}
	return nil
}

// checkTerminal refuses what contradicts a terminal.
func checkTerminal(r *step.Request) error {
	t := r.Terminal
	if t == nil {
		return nil
	}
	if len(t.Chars) > terminalChars {
		return bad("terminal", "%d control characters: there are %d", len(t.Chars), terminalChars)
	}
	for _, s := range []struct {
		field string
		kind  step.StreamKind
	}{{"stdin", r.Stdin.Kind}, {"stdout", r.Stdout.Kind}, {"stderr", r.Stderr.Kind}} {
		if s.kind != step.StreamNull {
			return bad(s.field, "kind %q beside a terminal, which is all three streams of task 0: want %q", s.kind, step.StreamNull)
		}
	}
	switch {
	case r.Label:
		return bad("label", "a terminal's output has no labels")
	case len(r.Script) > 0:
		return bad("terminal", "a batch script has no client, and so no terminal")
	}
	return nil
}

func checkApps(r *step.Request) error {
	if len(r.Apps) == 0 {
		return nil
	}
	if len(r.Apps) > appsMax {
		return bad("apps", "%d commands: the limit is %d", len(r.Apps), appsMax)
	}
	total := 0
	for i := range r.Apps {
		a := &r.Apps[i]
		if a.NTasks < 1 || a.NTasks > step.TasksMax {
			return bad("apps", "command %d has %d tasks: want 1 to %d", i, a.NTasks, step.TasksMax)
		}
		total += a.NTasks
		if a.Offset != nil && (*a.Offset < 0 || *a.Offset > step.TasksMax) {
			return bad("apps", "command %d begins at offset %d: want 0 to %d", i, *a.Offset, step.TasksMax)
		}
		if err := checkApp(a, i); err != nil {
			return err
		}
	}
	if total != r.NTasks {
		return bad("apps", "the commands have %d tasks, and the step %d", total, r.NTasks)
	}
	return nil
}

func checkApp(a *step.App, i int) error {
	if len(a.Argv) == 0 || len(a.Argv[0]) == 0 {
		return bad("apps", "command %d is empty", i)
	}
	for _, arg := range a.Argv {
		if bytes.IndexByte(arg, 0) >= 0 {
			return bad("apps", "an argument of command %d holds a NUL byte", i)
		}
	}
	for _, e := range a.Env {
		if err := checkEnv([]string{string(e)}); err != nil {
			return bad("apps", "command %d: %v", i, err)
		}
	}
	if strings.IndexByte(string(a.Cwd), 0) >= 0 || len(a.Cwd) > PathMax {
		return bad("apps", "the directory of command %d holds a NUL byte, or more than %d bytes", i, PathMax)
	}
	return nil
}

// checkBinding checks what a client may have written into the document by hand.
func checkBinding(r *step.Request) error {
	b := &r.Binding
	for _, v := range []struct {
		field string
		v     step.Verbosity
	}{{"binding.cpu", b.CPU.Verbosity}, {"binding.mem", b.Mem.Verbosity}} {
		if v.v != VerbosityDefault && v.v != Quiet && v.v != Verbose {
			return bad(v.field, "unknown verbosity %.40q", string(v.v))
		}
	}
	cpus, known := cpuList(b.CPU.Kind)
	if b.CPU.Kind != CPUBindAuto && !known {
		return bad("binding.cpu", "unknown type %.40q", string(b.CPU.Kind))
	}
	if err := checkList("", bindWord{string(b.CPU.Kind), b.CPU.List, b.CPU.List != ""}, cpus); err != nil {
		return bad("binding.cpu", "%v", err)
	}
	nodes, known := memList(b.Mem.Kind)
	if b.Mem.Kind != MemBindUnset && !known {
		return bad("binding.mem", "unknown type %.40q", string(b.Mem.Kind))
	}
	if err := cmp.Or(checkList("", bindWord{string(b.Mem.Kind), b.Mem.List, b.Mem.List != ""}, nodes), checkPrefer(b.Mem)); err != nil {
		return bad("binding.mem", "%v", err)
	}
	if err := checkDistribution(b.Distribution); err != nil {
		return bad("binding.distribution", "%v", err)
	}
	if b.Hint != "" && !knownHint(b.Hint) {
		return bad("binding.hint", "unknown hint %.40q", string(b.Hint))
	}
	for _, n := range []struct {
		field string
		n     int
	}{{"threads_per_core", b.ThreadsPerCore}, {"ntasks_per_core", b.NTasksPerCore}, {"ntasks_per_socket", b.NTasksPerSocket}} {
		if n.n < 0 || n.n > step.TasksMax {
			return bad("binding."+n.field, "%d is not from 1 to %d", n.n, step.TasksMax)
		}
	}
	return nil
}

func checkTime(r *step.Request) error {
	switch {
	case r.TimeLimitS < 0 || r.TimeLimitS > timeLimitMax:
		return bad("time_limit_s", "%d s: want 0 to %d", r.TimeLimitS, timeLimitMax)
	case r.Warn == nil:
	case r.Warn.Signal < 1 || r.Warn.Signal > 64:
		return bad("warn", "there is no signal %d", r.Warn.Signal)
	case r.Warn.BeforeS < 0 || r.Warn.BeforeS > warnBeforeMax:
		return bad("warn", "%d s before the end: want 0 to %d", r.Warn.BeforeS, warnBeforeMax)
	}
	return nil
}

func checkTaskScripts(r *step.Request) error {
	for _, s := range []struct{ field, path string }{{"task_prolog", r.TaskProlog}, {"task_epilog", r.TaskEpilog}} {
		if s.path == "" {
			continue
		}
		if !filepath.IsAbs(s.path) {
			return bad(s.field, "%.80q is not an absolute path", s.path)
		}
		if err := checkPath(s.field, s.path); err != nil {
			return err
		}
	}
	return nil
}

func bad(field, format string, args ...any) error {
	return &step.FieldError{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Bounds on what a client may ask for. They limit what noded stores and what stepd and the
// tasks carry; none is a site's policy.
const (
	// NameMax bounds a step's name, in bytes.
	NameMax = 255
	// PathMax bounds a path or a file name pattern, in bytes (PATH_MAX with its NUL).
	PathMax = 4095
	// acctgFreqMax is the longest time between samples, in seconds, as in Slurm.
	acctgFreqMax = 65533
)

// Bounds on a user's words to plugins, and on a batch script.
const (
	// OptionMax bounds the value of one plugin option, in bytes.
	OptionMax = 1 << 20
	// OptionsMax bounds the options of one step.
	OptionsMax = 1024
	// jobControlMax bounds the job control environment, in bytes. A variable that is
	// too long for a script's environment reaches the plugins alone.
	jobControlMax = 4 << 20
	// jobControlEntries bounds its variables, options among them.
	jobControlEntries = 4096
	// ScriptMax bounds a batch script, in bytes (Slurm's max_script_size).
	ScriptMax = 4 << 20
)

// terminalChars is the number of a terminal's control characters (NCCS of the kernel).
const terminalChars = 19

// appsMax bounds the commands of one step: each task may have its own.
const appsMax = step.TasksMax

// WaitForever is a step.Request.ImmediateS without a limit.
const WaitForever = -1

// OptionVariable is the variable that carries a plugin's option in an environment:
// _SLURM_SPANK_OPTION_<plugin>_<name>, with all but letters and digits as '_'
// (spank-behaviour §2).
func OptionVariable(plugin, name string) string {
	b := []byte(plugin + "_" + name)
	for i, c := range b { // bytes: what is no ASCII has one '_' for each
		if (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			b[i] = '_'
		}
	}
	return OptionPrefix + string(b)
}

// OptionPrefix begins the variables of OptionVariable.
const OptionPrefix = "_SLURM_SPANK_OPTION_"

// JobEnvPrefix begins the variables by which a job's commands see the job
// control environment, options of the outer command included (spank-behaviour §2).
const JobEnvPrefix = "SLURM_SPANK_"
