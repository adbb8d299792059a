package options

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/internal/manual"
	"stepd/internal/nearest"
)

// Exclusion is two options that cannot both hold, and why.
type Exclusion struct{ A, B, Why string }

const oneTerminal = "a terminal is all three streams of task 0"

// Exclusions are the pairs of all verbs; a verb that has but one of the two has no
// such pair. What srun lets pass side by side is not among them: of --hint, --cpu-bind
// and --ntasks-per-core the others win over --hint, and --detach-keys says nothing
// without --pty.
var Exclusions = []Exclusion{
	{"pty", "label", oneTerminal},
	{"pty", "input", oneTerminal},
	{"pty", "output", oneTerminal},
	{"pty", "error", oneTerminal},
	{"mem", "mem-per-cpu", "memory is the node's, or each CPU's"},
	{"mem", "mem-per-gpu", "memory is the node's, or each GPU's"},
	{"mem-per-cpu", "mem-per-gpu", "memory is each CPU's, or each GPU's"},
	{"cpus-per-task", "cpus-per-gpu", "CPUs are each task's, or each GPU's"},
	{"cpus-per-task", "tres-per-task", "both say how many CPUs a task has"},
	{"gpus-per-task", "ntasks-per-gpu", "tasks have GPUs, or GPUs have tasks"},
	{"gpus-per-task", "tres-per-task", "both say how many GPUs a task has"},
	{"exact", "whole", "as many CPUs as the tasks need, or all of the job"},
	{"quiet", "verbose", "less is said, or more"},
	{"dry-run", "test-only", "it is asked what would be started, or when"},
	{"standalone", "socket", "a private noded is started, or that one is asked"},
	{"standalone", "jobid", "a noded that is started now has no jobs"},
	{"batch", "json", "both say how a look is printed"},
	{"svg", "json", "both say how it is printed"},
}

// Requirement is an option that says nothing without another. Only what could be taken
// for done is refused: srun's own options may stand alone, as there.
type Requirement struct{ Option, Needs string }

// Requirements are those options of all verbs.
var Requirements = []Requirement{
	{"json", "dry-run"},
}

// contradictions refuses what cannot hold of a verb's options together.
func contradictions(f *pflag.FlagSet) error {
	for _, x := range Exclusions {
		if wasGiven(f, x.A) && wasGiven(f, x.B) {
			return Exclude(x.A, x.B)
		}
	}
	for _, r := range Requirements {
		if wasGiven(f, r.Option) && f.Lookup(r.Needs) != nil && !wasGiven(f, r.Needs) {
			return fmt.Errorf("--%s is of no use without --%s", r.Option, r.Needs)
		}
	}
	return nil
}

// Exclude words that the two options of an exclusion cannot both hold.
func Exclude(a, b string) error {
	at := slices.IndexFunc(Exclusions, func(x Exclusion) bool { return x.A == a && x.B == b })
	return fmt.Errorf("--%s and --%s exclude each other: %s", a, b, Exclusions[at].Why)
}

// wasGiven reports whether an option was given, with another value than the one that it has
// without.
func wasGiven(f *pflag.FlagSet, name string) bool {
	flag := f.Lookup(name)
	return flag != nil && flag.Changed && flag.Value.String() != flag.DefValue
}

// overruled reports whether an option that was given excludes this one, which comes from
// the environment or a script and is left out then.
func overruled(f *pflag.FlagSet, name string) bool {
	return slices.ContainsFunc(Exclusions, func(x Exclusion) bool {
		// Without a terminal --pty is disregarded, and excludes nothing.
		return x.A == name && wasGiven(f, x.B) && (x.B != "pty" || TakesTerminal(f)) ||
			x.B == name && wasGiven(f, x.A) && (x.A != "pty" || TakesTerminal(f))
	})
}

// Check is called before any verb runs.
func Check(c *cobra.Command, _ []string) error { return contradictions(c.Flags()) }

// UnknownVerb words that there is no such verb, with the one that was meant; other errors
// it leaves as they are.
func UnknownVerb(root *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	quoted, perr := strconv.QuotedPrefix(strings.TrimPrefix(err.Error(), "unknown command "))
	if perr != nil || !strings.HasPrefix(err.Error(), "unknown command ") {
		return err
	}
	word, _ := strconv.Unquote(quoted) // a QuotedPrefix always unquotes
	if now, ok := leftVerbs[word]; ok {
		return errRefused{"stepctl " + word, now}
	}
	if verb, ok := slurmCommands[word]; ok {
		return fmt.Errorf("unknown command %q: what %s does for Slurm does %s", word, word, verb)
	}
	var names []string
	for _, c := range root.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	if near := nearest.Of(word, names); near != "" {
		return fmt.Errorf("unknown command %q: did you mean %q?", word, near)
	}
	return fmt.Errorf("unknown command %q: see stepctl --help", word)
}

// slurmCommands are Slurm's commands, with the verbs that do the same here.
var slurmCommands = map[string]string{
	"sacct": "stepctl ps --all", "salloc": "stepctl alloc", "sattach": "stepctl attach", "sbatch": "stepctl batch",
	"scancel": "stepctl cancel", "scontrol": "stepctl show, suspend, resume and node", "sinfo": "stepctl node status",
	"squeue": "stepctl ps", "srun": "stepctl run", "sstat": "stepctl stat",
}

// NameArguments lets the verbs below root say which arguments they take where the command line has
// too many or too few, by their line of usage. Other checks of arguments stay as they are.
func NameArguments(root *cobra.Command) {
	for _, c := range root.Commands() {
		NameArguments(c)
		if c.Args == nil || c.HasSubCommands() {
			continue
		}
		check := c.Args
		c.Args = func(c *cobra.Command, args []string) error {
			err := check(c, args)
			switch {
			case err == nil:
				return nil
			case len(c.ValidArgs) > 0 && len(args) == 1:
				return fmt.Errorf("%s: %q is none of %s", c.CommandPath(), args[0], strings.Join(c.ValidArgs, ", "))
			}
			want := strings.TrimSuffix(c.CommandPath(), c.Name()) + c.Use
			if len(args) == 0 {
				return fmt.Errorf("an argument is missing: %s", want)
			}
			return fmt.Errorf("%q is one argument too many: %s", args[len(args)-1], want)
		}
	}
}

// FlagError says in one clear line what is wrong with an option of the command path.
func FlagError(path string, f *pflag.FlagSet, err error) error {
	if refused, ok := errors.AsType[errRefused](err); ok {
		return refused // its words name the option
	}
	return manual.Mistake(path, f, err)
}

// toSlurm is where jobs wait in a queue, and where programs are sent to nodes.
const toSlurm = "use Slurm: docs/slurm.md"

const (
	instead      = "start stepctl run in the background, or use stepctl batch"
	noContainers = "containers of the OCI are made under Slurm alone (docs/slurm.md); let the command start one"
	notBound     = "each task sees all devices of its step; none is accepted, and under Slurm all are done (docs/slurm.md)"
	oneBefore    = "start it before or after stepctl run; --task-prolog and --task-epilog run beside each task"
)

// refusedOption is an option of srun, salloc or sbatch that asks for what stepctl does not do, and
// that no script may take for done: run, alloc and batch refuse it by name, in the lines of a
// script and in a variable too.
type refusedOption struct {
	name, short string
	// bare options may stand without an argument.
	bare bool
	// variables stand for the option. One counts for the verb with its prefix (SLURM_ and SRUN_ of
	// run, SALLOC_ of alloc, SBATCH_ of batch).
	variables []string
	// why it is refused, or what does its work.
	why string
	// harmless is a value that asks for what is done anyway, "" without.
	harmless string
}

// ofRunAlone is srun's beside --async: sbatch's option of this name is served.
var ofRunAlone = refusedOption{name: "parsable", bare: true, why: instead}

var refusedOptions = []refusedOption{
	{name: "accel-bind", why: notBound},
	{name: "array", short: "a", variables: []string{"SBATCH_ARRAY_INX"}, why: toSlurm},
	{name: "async", bare: true, why: instead},
	{name: "bcast", bare: true, variables: []string{"SLURM_BCAST"}, why: toSlurm},
	{name: "bcast-exclude", variables: []string{"SLURM_BCAST_EXCLUDE"}, why: toSlurm},
	{name: "begin", short: "b", why: toSlurm},
	{name: "compress", bare: true, variables: []string{"SLURM_COMPRESS"}, why: toSlurm},
	{name: "container", variables: []string{"SLURM_CONTAINER", "SRUN_CONTAINER", "SBATCH_CONTAINER", "SALLOC_CONTAINER"}, why: noContainers},
	{name: "container-id", variables: []string{"SLURM_CONTAINER_ID"}, why: noContainers},
	{name: "container-type", why: noContainers},
	{name: "dependency", short: "d", variables: []string{"SLURM_DEPENDENCY"}, why: toSlurm},
	{name: "epilog", variables: []string{"SLURM_EPILOG"}, why: oneBefore},
	{name: "external-launcher", bare: true, why: "stepctl run starts the ranks of an MPI program itself: --mpi"},
	{name: "gpu-bind", variables: []string{"SLURM_GPU_BIND", "SBATCH_GPU_BIND", "SALLOC_GPU_BIND"}, why: notBound, harmless: "none"},
	{name: "gpus-per-socket", why: "GPUs are given by their numbers, not by sockets: use --gpus"},
	{name: "het-group", why: toSlurm},
	{name: "hold", short: "H", bare: true, why: toSlurm},
	{name: "ignore-signals", why: "stepctl run passes its signals on to the tasks, or ends the step by them"},
	{name: "kill-on-invalid-dep", why: toSlurm},
	{name: "no-allocate", short: "Z", bare: true, why: "a step has CPUs of its own: --overcommit shares them with other steps"},
	{name: "no-shell", bare: true, why: "a job of alloc ends with its command: use stepctl batch"},
	{name: "prolog", variables: []string{"SLURM_PROLOG"}, why: oneBefore},
	{name: "send-libs", bare: true, variables: []string{"SLURM_SEND_LIBS"}, why: toSlurm},
	{name: "slurmd-debug", why: "stepctl events shows what a step did"},
	{name: "tres-bind", why: notBound, harmless: "gres/gpu:none"},
	{name: "usage", bare: true, why: "--help shows the options"},
	{name: "version", short: "V", bare: true, why: "stepctl --version shows it"},
	{name: "wait-for-children", bare: true, why: "a task ends with its first process, and what that leaves is killed at the step's end"},
	{name: "x11", bare: true, why: "no display is forwarded: " + toSlurm},
}

// leftVerbs are verbs of Slurm's that stepctl has not, with what does their work.
var leftVerbs = map[string]string{"hold": toSlurm, "release": toSlurm, "requeue": toSlurm}

// errRefused refuses an option, a variable or a verb by name.
type errRefused struct{ name, why string }

func (e errRefused) Error() string { return fmt.Sprintf("%s is not supported: %s", e.name, e.why) }

// refusedFlag is the value of a refused option: only a harmless text can be set.
type refusedFlag struct {
	refusedOption
	value string
}

func (f *refusedFlag) String() string { return f.value }
func (f *refusedFlag) Type() string   { return "string" }

func (f *refusedFlag) Set(value string) error {
	if f.harmless != "" && value == f.harmless {
		f.value = value
		return nil
	}
	return errRefused{"--" + f.name, f.why}
}

// bindRefused makes hidden flags of refused options: so their arguments are parsed as srun, salloc and
// sbatch do.
func bindRefused(f *pflag.FlagSet, refused ...refusedOption) {
	for _, o := range refused {
		flag := f.VarPF(&refusedFlag{refusedOption: o}, o.name, o.short, "")
		flag.Hidden = true
		if o.bare {
			flag.NoOptDefVal = "true"
		}
	}
}

// refuseVariables refuses the variables, beginning with a verb's prefix, of refused options.
func refuseVariables(prefix string) error {
	for _, o := range refusedOptions {
		for _, name := range o.variables {
			counts := strings.HasPrefix(name, prefix) || prefix == "SLURM_" && strings.HasPrefix(name, "SRUN_")
			if value := os.Getenv(name); counts && value != "" && value != o.harmless {
				return errRefused{fmt.Sprintf("%s=%.80q (--%s)", name, value, o.name), o.why}
			}
		}
	}
	return nil
}
