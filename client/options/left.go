package options

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

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
