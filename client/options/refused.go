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
	{"exact", "whole", "as many CPUs as the tasks need, or all of the job"},
	{"quiet", "verbose", "less is said, or more"},
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
		return errLeft{"stepctl " + word, now}
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
	if left, ok := errors.AsType[errLeft](err); ok {
		return left // its words name the option
	}
	return manual.Mistake(path, f, err)
}

// toSlurm is where jobs wait in a queue, and where programs are sent to nodes.
const toSlurm = "use Slurm: docs/slurm.md"

// leftOption is an option of srun, salloc or sbatch that stepctl no longer has: run, alloc
// and batch refuse it by name, in the lines of a script and in a variable too.
type leftOption struct {
	name, short string
	// bare options may stand without an argument.
	bare bool
	// variable stands for the option; "" is none. It counts for the verb with its prefix
	// (SLURM_ of run, SALLOC_ of alloc, SBATCH_ of batch).
	variable string
	// now is what does the option's work.
	now string
}

var leftOptions = []leftOption{
	{name: "array", short: "a", variable: "SBATCH_ARRAY_INX", now: toSlurm},
	{name: "bcast", bare: true, variable: "SLURM_BCAST", now: toSlurm},
	{name: "begin", short: "b", now: toSlurm},
	{name: "compress", bare: true, variable: "SLURM_COMPRESS", now: toSlurm},
	{name: "dependency", short: "d", variable: "SLURM_DEPENDENCY", now: toSlurm},
	{name: "hold", short: "H", bare: true, now: toSlurm},
	{name: "kill-on-invalid-dep", now: toSlurm},
	{name: "send-libs", bare: true, variable: "SLURM_SEND_LIBS", now: toSlurm},
}

// leftVerbs are the verbs that stepctl no longer has, with what does their work.
var leftVerbs = map[string]string{"hold": toSlurm, "release": toSlurm, "requeue": toSlurm}

// errLeft refuses what has left, by name.
type errLeft struct{ name, now string }

func (e errLeft) Error() string {
	return fmt.Sprintf("%s is not supported any more: %s", e.name, e.now)
}

// leftFlag is the value of an option that has left: no text can be set.
type leftFlag struct{ leftOption }

func (leftFlag) String() string     { return "" }
func (leftFlag) Type() string       { return "string" }
func (f leftFlag) Set(string) error { return errLeft{"--" + f.name, f.now} }

// bindLeft makes hidden flags of the options that have left: so their arguments are
// parsed as they were.
func bindLeft(f *pflag.FlagSet) {
	for _, o := range leftOptions {
		flag := f.VarPF(leftFlag{o}, o.name, o.short, "")
		flag.Hidden = true
		if o.bare {
			flag.NoOptDefVal = "true"
		}
	}
}

// refuseLeft refuses the variables, beginning with prefix, of options that have left.
func refuseLeft(prefix string) error {
	for _, o := range leftOptions {
		if value := os.Getenv(o.variable); value != "" && strings.HasPrefix(o.variable, prefix) {
			return errLeft{fmt.Sprintf("%s=%.80q (--%s)", o.variable, value, o.name), o.now}
		}
	}
	return nil
}
