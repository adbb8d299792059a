package options

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"stepd/client/terminal"
	"stepd/srunopt"
	"stepd/step"
)

// Programs are the options of run about what the tasks run, and how long.
type Programs struct {
	Wait int // seconds after the first task's end until the others are ended; 0 is never

	time, signal           string
	multiProg              bool
	propagate              string
	taskProlog, taskEpilog string

	flags *pflag.FlagSet
}

// bindJob binds what run, alloc and batch have in common.
func (o *Programs) bindJob(f *pflag.FlagSet) {
	o.flags = f
	f.StringVarP(&o.time, "time", "t", "", "how long it may run: minutes, m:s, h:m:s or days-h[:m[:s]]")
	f.StringVar(&o.signal, "signal", "", "send a signal before that: [B:]SIGNAL[@SECONDS]; B: to the batch script alone")
}

// bindOutput binds what run and batch have in common beyond that.
func (o *Programs) bindOutput(f *pflag.FlagSet) {
	f.StringVar(&o.propagate, "propagate", "", "resource limits to pass on: ALL, NONE, or names as AS,NOFILE (default: the site's)")
	f.Lookup("propagate").NoOptDefVal = "ALL"
}

func (o *Programs) bindStep(f *pflag.FlagSet) {
	f.IntVarP(&o.Wait, "wait", "W", 0, "seconds after the first task's end until the others are ended; 0 is never")
	f.BoolVar(&o.multiProg, "multi-prog", false, "COMMAND is a file that says which task runs which program")
	f.StringVar(&o.taskProlog, "task-prolog", "", "a program to run before each task, which may change its environment")
	f.StringVar(&o.taskEpilog, "task-epilog", "", "a program to run after each task")
}

// set puts them into the request.
func (o *Programs) set(r *step.Request) error {
	for _, set := range []func(*step.Request) error{o.setTime, o.setPropagate, o.setScripts} {
		if err := set(r); err != nil {
			return err
		}
	}
	if o.Wait < 0 {
		return fmt.Errorf("--wait=%d: want a number of seconds, or 0", o.Wait)
	}
	if o.multiProg {
		return o.setApps(r)
	}
	return nil
}

func (o *Programs) setTime(r *step.Request) (err error) {
	if o.time != "" {
		if r.TimeLimitS, err = srunopt.ParseTime(o.time); err != nil {
			return fmt.Errorf("--time=%s: %w", o.time, err)
		}
	}
	if o.signal == "" {
		return nil
	}
	if r.Warn, err = srunopt.ParseWarning(o.signal, ParseSignal); err != nil {
		return fmt.Errorf("--signal=%s: %w", o.signal, err)
	}
	return nil
}

func (o *Programs) setPropagate(r *step.Request) error {
	if !o.flags.Changed("propagate") {
		return nil
	}
	_, err := o.limits(nil)
	r.OwnLimits = true
	return err
}

// limits keeps the SLURM_RLIMIT_* variables that --propagate names.
func (o *Programs) limits(env []string) ([]string, error) {
	var names []string
	switch text := strings.ToUpper(o.propagate); text {
	case "", "ALL":
		return env, nil
	case "NONE":
		return nil, nil
	default:
		for _, name := range strings.Split(text, ",") {
			name = strings.TrimPrefix(name, "RLIMIT_")
			if !slices.Contains(srunopt.ResourceLimits(), name) {
				return nil, fmt.Errorf("--propagate=%s: %q is no limit: write ALL, NONE, or some of %s", o.propagate, name, strings.Join(srunopt.ResourceLimits(), ","))
			}
			names = append(names, name)
		}
	}
	var kept []string
	for _, e := range env {
		name, _, _ := strings.Cut(strings.TrimPrefix(e, srunopt.LimitPrefix), "=")
		if slices.Contains(names, name) {
			kept = append(kept, e)
		}
	}
	return kept, nil
}

func (o *Programs) setScripts(r *step.Request) error {
	for _, s := range []struct {
		option, value string
		to            *string
	}{{"--task-prolog", o.taskProlog, &r.TaskProlog}, {"--task-epilog", o.taskEpilog, &r.TaskEpilog}} {
		if s.value == "" {
			continue
		}
		// On the nodes it is run from nowhere in particular.
		path, err := filepath.Abs(s.value)
		if err != nil {
			return fmt.Errorf("%s=%s: cannot tell the working directory: %w", s.option, s.value, err)
		}
		*s.to = path
	}
	return nil
}

// setApps reads the file of --multi-prog, which stands where the command does.
func (o *Programs) setApps(r *step.Request) (err error) {
	if len(r.Argv) > 1 {
		return fmt.Errorf("--multi-prog: one file is wanted, whose lines have the arguments: %q is too much", r.Argv[1])
	}
	if r.Apps, err = readMultiProg(r.Argv[0], r.NTasks); err != nil {
		return fmt.Errorf("--multi-prog: %w", err)
	}
	r.Argv = step.Words(r.Apps[0].Argv)
	return nil
}

// envOption is a variable that stands for an option which is not given.
type envOption struct{ name, flag string }

// variables are the variables that stand for options of a verb (srun(1), salloc(1) and
// sbatch(1), input environment variables).
func (k Kind) variables() []envOption {
	prefix := map[Kind]string{Allocation: "SALLOC_", BatchJob: "SBATCH_", StepOfJob: "SLURM_"}[k]
	all := []envOption{
		{prefix + "TIMELIMIT", "time"}, {prefix + "SIGNAL", "signal"}, {prefix + "IMMEDIATE", "immediate"}, {prefix + "OVERCOMMIT", "overcommit"},
		{prefix + "GPUS", "gpus"}, {prefix + "GPUS_PER_NODE", "gpus-per-node"}, {prefix + "GPUS_PER_TASK", "gpus-per-task"},
		{prefix + "CPUS_PER_GPU", "cpus-per-gpu"}, {prefix + "MEM_PER_GPU", "mem-per-gpu"}, {prefix + "DEBUG", "verbose"},
	}
	switch k {
	case Allocation:
		return append(all, envOption{"SALLOC_KILL_CMD", "kill-command"})
	case BatchJob:
		return append(all, []envOption{
			{"SBATCH_EXPORT", "export"}, {"SBATCH_OPEN_MODE", "open-mode"}, {"SBATCH_INPUT", "input"}, {"SBATCH_OUTPUT", "output"},
			{"SBATCH_ERROR", "error"}, {"SBATCH_JOB_NAME", "job-name"}, {"SBATCH_WAIT", "wait"},
		}...)
	}
	if os.Getenv("SLURM_JOB_ID") == "" { // else it is the job's, and not the step's
		all = append(all, envOption{"SLURM_JOB_NAME", "job-name"})
	}
	return append(all, []envOption{
		{"SLURM_WAIT", "wait"}, {"SLURM_KILL_BAD_EXIT", "kill-on-bad-exit"},
		{"SRUN_EXPORT_ENV", "export"}, {"SLURM_EXPORT_ENV", "export"}, {"SLURM_OPEN_MODE", "open-mode"}, {"SLURM_LABELIO", "label"},
		{"SLURM_UNBUFFEREDIO", "unbuffered"}, {"SLURM_STDINMODE", "input"}, {"SLURM_STDOUTMODE", "output"},
		{"SLURM_STDERRMODE", "error"}, {"SLURM_TASK_PROLOG", "task-prolog"}, {"SLURM_TASK_EPILOG", "task-epilog"},
		{"SLURM_MULTI_PROG", "multi-prog"}, {"SLURM_OVERLAP", "overlap"}, {"SLURM_EXACT", "exact"}, {"SLURM_DISABLE_STATUS", "disable-status"},
		{"SRUN_CPUS_PER_TASK", "cpus-per-task"}, {"SLURM_NTASKS_PER_GPU", "ntasks-per-gpu"}, {"SLURM_NTASKS_PER_NODE", "ntasks-per-node"},
		{"SLURM_REMOTE_CWD", "chdir"}, {"SLURM_WORKING_DIR", "chdir"},
	}...)
}

// FromEnv takes the options of a verb that its command line has not given from the
// environment. It refuses a variable of an option that is refused.
func FromEnv(f *pflag.FlagSet, k Kind) error {
	prefixes := k.prefixes()
	prefix := prefixes[len(prefixes)-1]
	if err := refuseVariables(prefix); err != nil {
		return err
	}
	unusedFromEnv(f, prefix)
	if err := bindingFromEnv(f, prefix); err != nil {
		return err
	}
	return optionsFromEnv(f, k.variables())
}

// optionsFromEnv takes the options that were not given, and that none excludes which
// was, from the environment: an outer step's often.
func optionsFromEnv(f *pflag.FlagSet, options []envOption) error {
	for _, e := range options {
		flag, value := f.Lookup(e.flag), os.Getenv(e.name)
		if flag == nil || flag.Changed || value == "" || overruled(f, e.flag) {
			continue
		}
		if flag.Value.Type() == "bool" {
			// srun: any number but 0, and any word, says yes.
			if n, err := strconv.Atoi(value); err == nil {
				value = strconv.FormatBool(n != 0)
			} else if _, err := strconv.ParseBool(value); err != nil {
				value = "true"
			}
		}
		// Set by name, so that it counts as given: it overrules #SBATCH lines.
		if err := f.Set(e.flag, value); err != nil {
			return fmt.Errorf("%s=%.80q: --%s overrules it: %w", e.name, value, e.flag, err)
		}
	}
	return nil
}

// errNoTime reports that a warning has nothing to come before.
var errNoTime = errors.New("--signal is of no use without --time: nothing ends the step")

// WarnUseless warns of options that come to nothing as they are.
func (o *Programs) WarnUseless(c *cobra.Command) {
	if o.signal != "" && o.time == "" && os.Getenv("SLURM_JOB_ID") == "" && !c.Flags().Changed("jobid") {
		terminal.Say("%s", errNoTime)
	}
}

// ParseSignal reads "TERM", "SIGTERM", "15".
func ParseSignal(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > 64 {
			return 0, fmt.Errorf("there is no signal %d", n)
		}
		return n, nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return int(sig), nil
	}
	return 0, fmt.Errorf("there is no signal %q", s)
}

// multiProgMax bounds the file of --multi-prog, in bytes: a request holds no more.
const multiProgMax = 8 << 20

// readMultiProg reads the file of --multi-prog (srun(1)) for ntasks tasks.
func readMultiProg(path string, ntasks int) ([]step.App, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the tasks' programs: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, multiProgMax+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read the tasks' programs: %w", err)
	case len(b) > multiProgMax:
		return nil, fmt.Errorf("%q is longer than %d bytes", path, multiProgMax)
	case bytes.IndexByte(b, 0) >= 0:
		return nil, fmt.Errorf("%q holds a NUL byte: is it a program?", path)
	}
	return srunopt.ParseMultiProg(path, string(b), ntasks)
}

// Tasks names tasks by their ranks: "task 3", "tasks 0-1,3".
func Tasks(ranks []int) string {
	word := "task "
	if len(ranks) > 1 {
		word = "tasks "
	}
	return word + step.FormatCPUList(ranks)
}
