package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rule is one measured rule of options or of the environment that no trace
// holds (spank-behaviour §2 to §4): a command, and facts that it leaves.
type rule struct {
	name    string
	command failure // its stack is the recording plugin's in full, unless given
	want    map[string]string
}

// optionForm is a variable that gives an option; user is the form that users
// and outer commands write.
func optionForm(user bool, name, value string) string {
	prefix := "_SLURM_SPANK_OPTION_PNAME_"
	if user {
		prefix = "SLURM_SPANK_" + prefix
	}
	return prefix + name + "=" + value
}

const fullProbe = "required PLUGINS/probe.so tag=A arg1\n"

// long75 is the longest name that an option may have.
const long75 = "a23456789b123456789c123456789d123456789e123456789f123456789g123456789h12345"

var rules = []rule{
	{"a flag by the user's variable", failure{command: "srun", env: []string{optionForm(true, "pflag", "")}},
		map[string]string{"local options": `42="" remote=0`, "remote options": `42=NULL remote=1 42="" remote=1`}},
	{"a value by the user's variable", failure{command: "srun", env: []string{optionForm(true, "ptab", "v")}},
		map[string]string{"local options": `41="v" remote=0`, "remote options": `41="v" remote=1 41="v" remote=1`}},
	{"variables come before the command line", failure{command: "srun", args: []string{"--preg=line"}, env: []string{optionForm(true, "preg", "env")}},
		map[string]string{"local options": `43="env" remote=0 43="line" remote=0`, "remote options": `43="line" remote=1 43="line" remote=1`}},
	{"sbatch takes the user's variable as srun does", failure{command: "sbatch", env: []string{optionForm(true, "preg", "v")}},
		map[string]string{"allocator options": `43="v" remote=0`, "batch options": `43="v" remote=1`}},
	{"salloc takes the user's variable as srun does", failure{command: "salloc+srun", env: []string{optionForm(true, "preg", "v")}},
		map[string]string{"allocator options": `43="v" remote=0`, "local options": `43="v" remote=0`, "remote options": `43="v" remote=1 43="v" remote=1`}},
	{"the user's variable of a table's option is srun's alone", failure{command: "sbatch", env: []string{optionForm(true, "ptab", "v")}},
		map[string]string{"allocator options": "", "batch options": ""}},
	{"the inner variable is the remote side's alone", failure{command: "srun", env: []string{optionForm(false, "ptab", "v")}},
		map[string]string{"local options": "", "remote options": `41="v" remote=1`}},
	{"the inner variable reaches a batch step", failure{command: "sbatch", env: []string{optionForm(false, "ptab", "v")}},
		map[string]string{"allocator options": "", "batch options": `41="v" remote=1`}},
	{"the table of options is not salloc's", failure{command: "salloc+srun", args: []string{"--ptab=v"}},
		map[string]string{"exit code": "255", "ran": "no", "stderr names --ptab": "yes"}},
	{"the table of options is not sbatch's", failure{command: "sbatch", args: []string{"--ptab=v"}},
		map[string]string{"exit code": "255", "ran": "no", "stderr names --ptab": "yes"}},
	{"an optional argument is left out", failure{command: "srun", args: []string{"--preg"}},
		map[string]string{"local options": `43=NULL remote=0`, "remote options": `43=NULL remote=1 43="" remote=1`}},
	{"a required argument is missing", failure{command: "srun", args: []string{"--ptab"}, last: true},
		map[string]string{"exit code": "255", "ran": "no", "stderr names --ptab": "yes"}},
	{"the remote order is the stack's, not the line's", failure{command: "srun", args: []string{"--preg=r", "--ptab=t"}},
		map[string]string{"local options": `43="r" remote=0 41="t" remote=0`, "remote options": `41="t" remote=1 43="r" remote=1 41="t" remote=1 43="r" remote=1`}},
	{"a name of 75 characters", failure{command: "srun", args: []string{"--" + long75}, stack: "required PLUGINS/bad_OPT75.so\n"},
		map[string]string{"exit code": "0", "ran": "task", "stderr": "bad option 1 NULL remote=0|bad plugin init ran ctx=1"}},
	{"an option that clashes is the command's own", failure{command: "srun", args: []string{"--ntasks=2"}, stack: "required PLUGINS/bad_BUILTIN.so\n"},
		map[string]string{"exit code": "0", "stderr": `[client] error: Ignoring conflicting option "ntasks" in plugin "bad"|bad plugin init ran ctx=1`}},
	{"registering nothing", failure{command: "srun", stack: "required PLUGINS/bad_NULLOPT.so\n"},
		map[string]string{"exit code": "0", "stderr": "bad plugin init ran ctx=1|bad plugin: spank_option_register: 3001"}},
	{"a duplicate is the earlier plugin's", failure{command: "srun", args: []string{"--pflag"}, stack: fullProbe + "required PLUGINS/bad_DUPOPT.so\n"},
		map[string]string{"exit code": "0", "local options": `42=NULL remote=0`, "stderr": `[client] spank: option "pflag" provided by both bad_DUPOPT.so and probe.so|bad plugin init ran ctx=1`}},
}

// race may be called or not where task_post_fork fails: the task is killed then.
const race = "task_init_privileged"

// chainRules: a required plugin that fails ends the callback for those behind
// it, an optional one does not (spank-behaviour §5); a positive code as a negative one.
func chainRules() []rule {
	const whole = "init init_post_opt user_init task_post_fork task_init_privileged task_init task_exit exit"
	var out []rule
	for _, cb := range strings.Fields(whole) {
		stack := "FLAG PLUGINS/probe.so tag=A lite fail=" + cb + "=RC@2\nrequired PLUGINS/probeB.so tag=B lite\n"
		for name, with := range map[string][2]string{"optional": {"optional", "-1"}, "required, positive": {"required", "1"}, "required, negative": {"required", "-1"}} {
			called := strings.Fields(whole)
			if with[0] == "required" {
				called = afterFailure(cb, slices.DeleteFunc(called, func(s string) bool { return s == cb }))
			}
			if cb == "task_post_fork" {
				called = slices.DeleteFunc(called, func(s string) bool { return s == race })
			}
			slices.SortFunc(called, byHook)
			out = append(out, rule{
				"the chain of " + cb + ", " + name,
				failure{command: "srun", stack: strings.NewReplacer("FLAG", with[0], "RC", with[1]).Replace(stack)},
				map[string]string{"second, remote": strings.Join(called, " ")},
			})
		}
	}
	return out
}

// afterFailure are the callbacks of the second plugin where the first one's
// failure of cb ends the launch.
func afterFailure(cb string, called []string) []string {
	not := map[string][]string{
		"init":                 {"init_post_opt", "user_init", "task_post_fork", "task_init_privileged", "task_init", "task_exit", "exit"},
		"init_post_opt":        {"user_init", "task_post_fork", "task_init_privileged", "task_init", "task_exit", "exit"},
		"user_init":            {"task_post_fork", "task_init_privileged", "task_init", "task_exit"},
		"task_post_fork":       {"task_init", "task_exit"},
		"task_init_privileged": {"task_init"},
	}[cb]
	return slices.DeleteFunc(called, func(s string) bool { return slices.Contains(not, s) })
}

// byHook is the order of hookOrder.
func byHook(a, b string) int { return slices.Index(hookOrder, a) - slices.Index(hookOrder, b) }

// TestRootConformanceRules checks the rules one by one.
func TestRootConformanceRules(t *testing.T) {
	t.Parallel()
	cases, rules := map[string]failure{}, append(rules, chainRules()...)
	for _, r := range rules {
		if r.command.stack == "" {
			r.command.stack = fullProbe
		}
		cases[r.name] = r.command
	}
	outcomes := newStand(t, "").run(t, cases)
	report := newReport(t, "rules")
	for _, r := range rules {
		o := outcomes[r.name]
		if o == nil {
			t.Errorf("%s: no outcome", r.name)
			continue
		}
		slices.Sort(o.says) // a plugin's own line may overtake its host's
		got := map[string]string{"exit code": o.code, "ran": o.ran, "stderr": strings.Join(o.says, "|"), "stderr names --ptab": "no"}
		slices.SortFunc(o.second["remote"], byHook)
		if strings.HasPrefix(r.name, "the chain of task_post_fork") {
			o.second["remote"] = slices.DeleteFunc(o.second["remote"], func(s string) bool { return s == race })
		}
		got["second, remote"] = strings.Join(o.second["remote"], " ")
		if strings.Contains(got["stderr"], "--ptab") {
			got["stderr names --ptab"] = "yes"
		}
		for _, actor := range append([]string{batchActor}, actors[1], actors[2], actors[3]) {
			got[actor+" options"] = strings.Join(o.options[actor], " ")
		}
		var fields []string
		for field := range r.want {
			fields = append(fields, field)
		}
		slices.Sort(fields)
		for _, field := range fields {
			report.fact(r.name, r.name, field, r.want[field], got[field])
		}
	}
	report.end(61)
}

// TestRootConformanceEnvironment: which of a plugin's settings a task sees,
// which a batch script, and that neither sees the remote side's form of
// options (spank-behaviour §2, §3).
func TestRootConformanceEnvironment(t *testing.T) {
	n := startNode(t, site{})
	n.write(t, "plugstack.conf", "required "+buildProbe(t, n, ownHeaders, n.recordFile(t))+" tag=A arg1\n")
	report := newReport(t, "environment")
	check := func(who, env string, want map[string]string) {
		t.Helper()
		vars := map[string]string{}
		for _, line := range strings.Split(env, "\n") {
			if name, value, ok := strings.Cut(line, "="); ok {
				vars[name] = value
			}
		}
		var names []string
		for name := range want {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			got, ok := vars[name]
			if !ok {
				got = absent
			} else if strings.HasPrefix(got, "pid") {
				got = "set"
			}
			report.fact(who, who, name, want[name], got)
		}
		for name := range vars {
			if strings.HasPrefix(name, "_SLURM_SPANK_OPTION_") {
				report.fact(who, who, name, absent, vars[name])
			}
		}
	}
	task := map[string]string{"_SLURM_SPANK_OPTION_PNAME_preg": absent, "PROBE_LAST": "task_init"}
	for cb, seen := range map[string]string{"init": "set", "init_post_opt": "set", "user_init": "set", "task_init_privileged": "set",
		"task_init": "set", "task_post_fork": absent, "task_exit": absent, "exit": absent} {
		task["PROBE_SET_A_"+cb] = seen
	}
	r := n.ctl(t, "run", "-n1", "--preg=v", "env")
	check("task", r.out, task)
	r = n.ctl(t, "batch", "-W", "-n1", "--preg=v", "--pregflag", "-o", "out", n.userFile(t, "job.sh", "#!/bin/sh\nenv\n", 0o755))
	if r.code != 0 {
		t.Errorf("batch: %v", r)
	}
	b, err := os.ReadFile(filepath.Join(n.wd, "out"))
	must(t, err)
	script := map[string]string{
		"_SLURM_SPANK_OPTION_PNAME_preg":                 absent,
		"SLURM_SPANK__SLURM_SPANK_OPTION_PNAME_preg":     "v",
		"SLURM_SPANK__SLURM_SPANK_OPTION_PNAME_pregflag": "(null)",
		"SLURM_SPANK_PROBE_JC_LAST":                      "init_post_opt",
		"SLURM_SPANK_PROBE_JCSET_A_init":                 "jc",
		"SLURM_SPANK_PROBE_JCSET_A_init_post_opt":        "jc",
		"SLURM_SPANK_PROBE_JCSET_A_user_init":            absent,
	}
	check("script", string(b), script)
	report.end(17)
}
