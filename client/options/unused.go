package options

import (
	"os"
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
	// variables stand for it, behind the prefix of a verb's: SLURM_, SBATCH_, SALLOC_.
	variables []string
}

var unusedOptions = []unusedOption{
	{name: "account", short: "A", variables: []string{"ACCOUNT"}},
	{name: "batch", variables: []string{"BATCH"}},
	{name: "bb", variables: []string{"BURST_BUFFER"}},
	{name: "bbf"},
	{name: "bell", bare: true, variables: []string{"BELL"}},
	{name: "cluster-constraint"},
	{name: "clusters", short: "M", variables: []string{"CLUSTERS"}},
	{name: "comment"},
	{name: "consolidate-segments", bare: true},
	{name: "constraint", short: "C", variables: []string{"CONSTRAINT"}},
	{name: "contiguous", bare: true},
	{name: "core-spec", short: "S", here: true, variables: []string{"CORE_SPEC"}},
	{name: "cores-per-socket"},
	{name: "cpu-freq", here: true, variables: []string{"CPU_FREQ_REQ"}},
	{name: "deadline"},
	{name: "delay-boot", variables: []string{"DELAY_BOOT"}},
	{name: "exclusive", bare: true, variables: []string{"EXCLUSIVE"}},
	{name: "extra"},
	{name: "extra-node-info", short: "B"},
	{name: "get-user-env", bare: true, here: true, variables: []string{"GET_USER_ENV"}},
	{name: "gpu-freq", here: true, variables: []string{"GPU_FREQ"}},
	{name: "gres-flags", variables: []string{"GRES_FLAGS"}},
	{name: "ignore-pbs", bare: true, variables: []string{"IGNORE_PBS"}},
	{name: "licenses", short: "L"},
	{name: "mail-type"},
	{name: "mail-user"},
	{name: "mcs-label"},
	{name: "mem-update"},
	{name: "mincpus"},
	{name: "msg-timeout"},
	{name: "network", here: true, variables: []string{"NETWORK"}},
	{name: "nice", bare: true},
	{name: "no-bell", bare: true, variables: []string{"NO_BELL"}},
	{name: "oversubscribe", short: "s", bare: true},
	{name: "partition", short: "p", variables: []string{"PARTITION"}},
	{name: "power", here: true, variables: []string{"POWER"}},
	{name: "prefer"},
	{name: "priority"},
	{name: "profile", here: true, variables: []string{"PROFILE"}},
	{name: "qos", short: "q", variables: []string{"QOS"}},
	{name: "reboot", bare: true},
	{name: "requeue", bare: true, variables: []string{"REQUEUE"}},
	{name: "reservation", variables: []string{"RESERVATION"}},
	{name: "resources"},
	{name: "resv-ports", bare: true, variables: []string{"RESV_PORTS"}},
	{name: "segment"},
	{name: "sockets-per-node"},
	{name: "spread-job", bare: true, variables: []string{"SPREAD_JOB"}},
	{name: "spread-segments", bare: true},
	{name: "stepmgr", bare: true},
	{name: "switches", variables: []string{"REQ_SWITCH", "WAIT4SWITCH"}},
	{name: "thread-spec", here: true, variables: []string{"THREAD_SPEC"}},
	{name: "threads", short: "T", variables: []string{"THREADS"}},
	{name: "time-min"},
	{name: "tmp"},
	{name: "treewidth"},
	{name: "use-min-nodes", bare: true, variables: []string{"USE_MIN_NODES"}},
	{name: "wait-all-nodes", variables: []string{"WAIT_ALL_NODES"}},
	{name: "wckey", variables: []string{"WCKEY"}},
}

// unused are such options that were given, in their order: "--partition", or "SLURM_PARTITION" of one
// that the environment has.
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
		i := slices.IndexFunc(o.unused, u.is)
		switch {
		case i < 0:
		case u.here:
			here = append(here, o.unused[i])
		default:
			queue = append(queue, o.unused[i])
		}
	}
	if len(queue) > 0 {
		terminal.Say("without effect, since there is no queue and one node: %s", strings.Join(queue, ", "))
	}
	if len(here) > 0 {
		terminal.Say("without effect, since noded does not do it: %s", strings.Join(here, ", "))
	}
}

// is reports whether given is the option, or a variable that stands for it.
func (u *unusedOption) is(given string) bool {
	if name, option := strings.CutPrefix(given, "--"); option {
		return name == u.name
	}
	_, name, _ := strings.Cut(given, "_")
	return slices.Contains(u.variables, name)
}

// unusedFromEnv notes the options without effect that a verb's command line does not have, and the
// environment has, by the prefix of the verb's variables; SLURM_CLUSTERS holds for every verb.
func unusedFromEnv(f *pflag.FlagSet, prefix string) {
	for _, u := range unusedOptions {
		flag := f.Lookup(u.name)
		if flag == nil || flag.Changed {
			continue
		}
		for _, v := range u.variables {
			name := prefix + v
			if u.name == "clusters" && os.Getenv(name) == "" {
				name = "SLURM_" + v
			}
			if of, ok := flag.Value.(*unusedFlag); ok && os.Getenv(name) != "" {
				of.note(name)
				flag.Changed = true // it overrules #SBATCH lines
			}
		}
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
	f.note("--" + f.name)
	return nil
}

// note notes that the option was given, by its name or a variable.
func (f *unusedFlag) note(by string) {
	if !slices.Contains(*f.given, by) {
		*f.given = append(*f.given, by)
	}
}
