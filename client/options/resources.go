package options

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/client/terminal"
	"stepd/slurmconf"
	"stepd/srunopt"
	"stepd/step"
)

// Resources are what run, alloc and batch may ask for beside CPUs.
type Resources struct {
	mem, memPerCPU string
	gres           string
	oomKillStep    string
}

func (o *Resources) bind(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.mem, "mem", "", "memory: a number of MB, or with K, M, G or T; 0 is all of the node's or the job's")
	f.StringVar(&o.memPerCPU, "mem-per-cpu", "", "memory for each CPU, as --mem")
	f.StringVar(&o.gres, "gres", "", "generic resources: NAME[[:TYPE]:COUNT],... or none")
	f.StringVar(&o.oomKillStep, "oom-kill-step", "", "end the whole step when memory runs out in it: 0 or 1")
	f.Lookup("oom-kill-step").NoOptDefVal = "1"
}

// prefixes are the prefixes of the variables that stand for options of a verb, in the order in
// which they count: srun's, salloc's and sbatch's.
func (k Kind) prefixes() []string {
	switch k {
	case Allocation:
		return []string{"SALLOC_"}
	case BatchJob:
		return []string{"SBATCH_"}
	}
	return []string{"SLURM_STEP_", "SLURM_"}
}

// input is the option's value: as given, else as the environment has it. from
// names where it was.
func input(kind Kind, given, option, variable string) (value, from string) {
	if given != "" {
		return given, option
	}
	for _, prefix := range kind.prefixes() {
		if v := os.Getenv(prefix + variable); v != "" {
			return v, prefix + variable
		}
	}
	return "", option
}

// set puts them into the request.
func (o *Resources) set(kind Kind, r *step.Request) error {
	if o.mem != "" && o.memPerCPU != "" {
		return Exclude("mem", "mem-per-cpu")
	}
	mem, memFrom := o.mem, "--mem"
	if o.memPerCPU == "" { // what the command line says overrules either variable
		mem, memFrom = input(kind, o.mem, "--mem", "MEM_PER_NODE")
	}
	perCPU, perFrom := o.memPerCPU, "--mem-per-cpu"
	if mem == "" {
		perCPU, perFrom = input(kind, o.memPerCPU, "--mem-per-cpu", "MEM_PER_CPU")
	}
	for _, m := range []struct {
		value, from string
		to          **uint64
	}{{mem, memFrom, &r.Mem}, {perCPU, perFrom, &r.MemPerCPU}} {
		if m.value == "" {
			continue
		}
		mb, err := srunopt.ParseMemory(m.value)
		if err != nil {
			return fmt.Errorf("%s: %w", m.from, err)
		}
		*m.to = &mb
	}
	gres, from := input(kind, o.gres, "--gres", "GRES")
	var err error
	if r.Gres, err = srunopt.ParseGres(gres); err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	kill, from := input(kind, o.oomKillStep, "--oom-kill-step", "OOM_KILL_STEP")
	switch kill {
	case "":
	case "0", "1":
		r.OOMKillStep = new(kill == "1")
	default:
		return fmt.Errorf("%s=%s: want 0 or 1", from, cmp.Or(kill, `""`))
	}
	return nil
}

// MemoryVariables tell the commands of a job what it asked for (salloc(1)).
func MemoryVariables(r *step.Request) []string {
	switch {
	case r.MemPerCPU != nil && *r.MemPerCPU > 0:
		return []string{fmt.Sprintf("SLURM_MEM_PER_CPU=%d", *r.MemPerCPU)}
	case r.Mem != nil && *r.Mem > 0:
		return []string{fmt.Sprintf("SLURM_MEM_PER_NODE=%d", *r.Mem)}
	}
	return nil
}

// Immediate is how long a request waits for what it needs.
type Immediate string

func (o *Immediate) bind(f *pflag.FlagSet) {
	f.StringVarP((*string)(o), "immediate", "I", "", "wait so many seconds for what is missing, then give up; inf: as long as this command lives (default: 0; in a job: inf)")
	f.Lookup("immediate").NoOptDefVal = "1" // srun's
}

// Seconds is how long to wait: nil is the default.
func (o Immediate) Seconds() (*int, error) {
	if o == "" {
		return nil, nil
	}
	if o == "inf" {
		return new(srunopt.WaitForever), nil
	}
	n, err := strconv.ParseUint(string(o), 10, 31)
	if err != nil {
		return nil, fmt.Errorf("--immediate=%s: want a number of seconds, or inf", string(o))
	}
	return new(int(n)), nil
}

// useSlurm is where steps of several nodes are run.
const useSlurm = "several nodes: use Slurm (docs/slurm.md)"

// Nodes are srun's options about nodes: what they ask for has to be this node.
type Nodes struct {
	count     string // -N
	want, not string // -w, -x
	perNode   int
	flags     *pflag.FlagSet // to know which of them were given
}

func (o *Nodes) bind(c *cobra.Command) {
	f := c.Flags()
	o.flags = f
	f.StringVarP(&o.count, "nodes", "N", "1", "number of nodes: 1; "+useSlurm)
	f.StringVarP(&o.want, "nodelist", "w", "", "the node to run on: this one")
	f.StringVarP(&o.not, "exclude", "x", "", "nodes to keep away from, as a list of hosts; not this one")
	f.IntVar(&o.perNode, "ntasks-per-node", 0, "most tasks of the node; without --ntasks, the number of tasks")
	f.StringP("no-kill", "k", "off", "accepted, and without effect: there is no other node to go on with")
	f.Lookup("no-kill").NoOptDefVal = "set"
}

// set refuses what does not mean this node, which is called self. Without --ntasks there
// are as many tasks as --ntasks-per-node says.
func (o *Nodes) set(r *step.Request, self string, inJob bool) error {
	r.NNodes = 1
	option, value := "-N", o.count
	if v := os.Getenv("SLURM_NNODES"); v != "" && inJob && !o.flags.Changed("nodes") {
		option, value = "SLURM_NNODES", v
	}
	if err := oneNode(option, value); err != nil {
		return err
	}
	if err := o.here(self); err != nil {
		return err
	}
	return o.setPerNode(r, inJob)
}

// oneNode refuses a number of nodes, or a range MIN-MAX, that is not 1.
func oneNode(option, value string) error {
	least, most, err := nodeCount(value)
	switch {
	case err != nil:
		return fmt.Errorf("cannot use %s %q: %w", option, value, err)
	case least == 1 && most == 1:
		return nil
	case least == most:
		return fmt.Errorf("cannot run on %d nodes (%s): %s", least, asGiven(option, value), useSlurm)
	}
	return fmt.Errorf("cannot run on %d to %d nodes (%s): %s", least, most, asGiven(option, value), useSlurm)
}

// asGiven writes an option or a variable with its value, as the user has.
func asGiven(option, value string) string {
	if strings.HasPrefix(option, "-") {
		return option + " " + value
	}
	return option + "=" + value
}

// nodeCount reads -N: "2" or "2-4".
func nodeCount(text string) (least, most int, err error) {
	from, to, ranged := strings.Cut(text, "-")
	if !ranged {
		to = from
	}
	least, err = strconv.Atoi(from)
	if err == nil {
		most, err = strconv.Atoi(to)
	}
	if err != nil || least < 1 || most < least {
		return 0, 0, fmt.Errorf("write a number of nodes, or MIN-MAX")
	}
	return least, most, nil
}

// here refuses a --nodelist with another node than self, and an --exclude with self.
func (o *Nodes) here(self string) error {
	want, err := slurmconf.ExpandHosts(o.want)
	if err != nil {
		return fmt.Errorf("--nodelist: %w", err)
	}
	if i := slices.IndexFunc(want, func(name string) bool { return name != self }); i >= 0 {
		return fmt.Errorf("cannot run on node %q (-w %s): this node is %q; %s", want[i], o.want, self, useSlurm)
	}
	not, err := slurmconf.ExpandHosts(o.not)
	if err != nil {
		return fmt.Errorf("--exclude: %w", err)
	}
	if slices.Contains(not, self) {
		return fmt.Errorf("cannot run elsewhere than on node %q (-x %s): %s", self, o.not, useSlurm)
	}
	return nil
}

// setPerNode settles what --ntasks and --ntasks-per-node say together, as srun does: in a
// job the number of tasks counts.
func (o *Nodes) setPerNode(r *step.Request, inJob bool) error {
	switch {
	case o.perNode < 0 || o.perNode > step.TasksMax:
		return fmt.Errorf("--ntasks-per-node=%d: want 1 to %d", o.perNode, step.TasksMax)
	case o.perNode == 0:
	case !o.flags.Changed("ntasks") && !inJob:
		r.NTasks = o.perNode
	case r.NTasks <= o.perNode:
	case !inJob:
		return fmt.Errorf("cannot run %d tasks with %d on a node (--ntasks-per-node %d): %s", r.NTasks, o.perNode, o.perNode, useSlurm)
	default:
		terminal.Say("--ntasks-per-node=%d is disregarded: the step has %d tasks", o.perNode, r.NTasks)
	}
	return nil
}
