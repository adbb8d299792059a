package options

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"stepd/client/terminal"
)

// An unusedOption is one of srun, sbatch or salloc that is for a queue, for several nodes, or for what
// a controller decides (how a CPU or GPU is clocked, how nodes are chosen and prepared).
// It is accepted, so that a site's scripts run as they are, and has no effect here.
type unusedOption struct {
	name, short string
	bare        bool // it may stand without an argument
}

var unusedOptions = []unusedOption{
	{name: "account", short: "A"},
	{name: "bb"},
	{name: "bbf"},
	{name: "cluster-constraint"},
	{name: "clusters", short: "M"},
	{name: "comment"},
	{name: "constraint", short: "C"},
	{name: "contiguous", bare: true},
	{name: "core-spec", short: "S"},
	{name: "cores-per-socket"},
	{name: "cpu-freq"},
	{name: "deadline"},
	{name: "delay-boot"},
	{name: "exclusive", bare: true},
	{name: "extra"},
	{name: "extra-node-info", short: "B"},
	{name: "get-user-env", bare: true},
	{name: "gpu-freq"},
	{name: "gres-flags"},
	{name: "ignore-pbs", bare: true},
	{name: "licenses", short: "L"},
	{name: "mail-type"},
	{name: "mail-user"},
	{name: "mcs-label"},
	{name: "mincpus"},
	{name: "network"},
	{name: "nice", bare: true},
	{name: "oversubscribe", short: "s", bare: true},
	{name: "partition", short: "p"},
	{name: "power"},
	{name: "prefer"},
	{name: "priority"},
	{name: "profile"},
	{name: "qos"}, // -q is sbatch's qos and srun's quit-on-interrupt
	{name: "reboot", bare: true},
	{name: "reservation"},
	{name: "resv-ports", bare: true},
	{name: "segment"},
	{name: "sockets-per-node"},
	{name: "spread-job", bare: true},
	{name: "switches"},
	{name: "thread-spec"},
	{name: "time-min"},
	{name: "tmp"},
	{name: "use-min-nodes", bare: true},
	{name: "wait-all-nodes"},
	{name: "wckey"},
}

// unused are the names of such options that were given, in their order.
type unused []string

// bind makes hidden flags of them: no page offers what has no effect.
func (u *unused) bind(f *pflag.FlagSet) {
	for _, o := range unusedOptions {
		flag := f.VarPF(&unusedFlag{given: u, name: o.name}, o.name, o.short, "")
		flag.Hidden = true
		if o.bare {
			flag.NoOptDefVal = "true"
		}
	}
}

// TellUnused names the options without effect that were given, in one line, unless --quiet was.
func (o *Run) TellUnused() {
	if len(o.unused) > 0 && !o.Quiet {
		terminal.Say("without effect, since there is no queue and one node: --%s", strings.Join(o.unused, ", --"))
	}
}

// unusedFlag is the value of one of them.
type unusedFlag struct {
	given       *unused
	name, value string
}

func (f *unusedFlag) String() string { return f.value }
func (f *unusedFlag) Type() string   { return "string" }

func (f *unusedFlag) Set(value string) error {
	f.value = value
	if !slices.Contains(*f.given, f.name) {
		*f.given = append(*f.given, f.name)
	}
	return nil
}
