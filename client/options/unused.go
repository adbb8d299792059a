package options

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"stepd/client/terminal"
)

// An unusedOption is one of srun, sbatch or salloc that is for a queue, for several nodes, or for what
// a controller decides (how nodes are chosen and prepared). It is accepted, so that a site's scripts
// run as they are, and has no effect here.
type unusedOption struct {
	name, short string
	bare        bool // it may stand without an argument
	here        bool // it is for a node, whose noded does not do it
}

var unusedOptions = []unusedOption{
	{name: "account", short: "A"},
	{name: "batch"},
	{name: "bb"},
	{name: "bbf"},
	{name: "bell", bare: true},
	{name: "cluster-constraint"},
	{name: "clusters", short: "M"},
	{name: "comment"},
	{name: "consolidate-segments", bare: true},
	{name: "constraint", short: "C"},
	{name: "contiguous", bare: true},
	{name: "core-spec", short: "S", here: true},
	{name: "cores-per-socket"},
	{name: "cpu-freq", here: true},
	{name: "deadline"},
	{name: "delay-boot"},
	{name: "exclusive", bare: true},
	{name: "extra"},
	{name: "extra-node-info", short: "B"},
	{name: "get-user-env", bare: true, here: true},
	{name: "gpu-freq", here: true},
	{name: "gres-flags"},
	{name: "ignore-pbs", bare: true},
	{name: "licenses", short: "L"},
	{name: "mail-type"},
	{name: "mail-user"},
	{name: "mcs-label"},
	{name: "mem-update"},
	{name: "mincpus"},
	{name: "msg-timeout"},
	{name: "network", here: true},
	{name: "nice", bare: true},
	{name: "no-bell", bare: true},
	{name: "oversubscribe", short: "s", bare: true},
	{name: "partition", short: "p"},
	{name: "power", here: true},
	{name: "prefer"},
	{name: "priority"},
	{name: "profile", here: true},
	{name: "qos", short: "q"},
	{name: "reboot", bare: true},
	{name: "requeue", bare: true},
	{name: "reservation"},
	{name: "resources"},
	{name: "resv-ports", bare: true},
	{name: "segment"},
	{name: "sockets-per-node"},
	{name: "spread-job", bare: true},
	{name: "spread-segments", bare: true},
	{name: "stepmgr", bare: true},
	{name: "switches"},
	{name: "thread-spec", here: true},
	{name: "threads", short: "T"},
	{name: "time-min"},
	{name: "tmp"},
	{name: "treewidth"},
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

// TellUnused names the options without effect that were given, in one line for each reason, unless
// --quiet was.
func (o *Run) TellUnused() {
	if o.Quiet {
		return
	}
	var queue, here []string
	for _, u := range unusedOptions {
		switch {
		case !slices.Contains(o.unused, u.name):
		case u.here:
			here = append(here, "--"+u.name)
		default:
			queue = append(queue, "--"+u.name)
		}
	}
	if len(queue) > 0 {
		terminal.Say("without effect, since there is no queue and one node: %s", strings.Join(queue, ", "))
	}
	if len(here) > 0 {
		terminal.Say("without effect, since noded does not do it: %s", strings.Join(here, ", "))
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
