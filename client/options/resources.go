package options

import (
	"cmp"
	"embed"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/slurmconf"
	"stepd/srunopt"
	"stepd/step"
)

// Resources are what run, alloc and batch may ask for beside CPUs.
type Resources struct {
	mem, memPerCPU string
	gres           string
	gpus           string
	perGPU         perGPU
	oomKillStep    string
}

func (o *Resources) bind(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.mem, "mem", "", "memory: a number of MB, or with K, M, G or T; 0 is all of the node's or the job's")
	f.StringVar(&o.memPerCPU, "mem-per-cpu", "", "memory for each CPU, as --mem")
	f.StringVar(&o.gres, "gres", "", "generic resources: NAME[[:TYPE]:COUNT],... or none")
	f.StringVarP(&o.gpus, "gpus", "G", "", "GPUs: [TYPE:]COUNT, as --gres=gpu:[TYPE:]COUNT")
	f.StringVar(&o.gpus, "gpus-per-node", "", "the same as --gpus: there is one node")
	o.perGPU.bind(f)
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
	if err := o.setGres(kind, r); err != nil {
		return err
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

// TellMemory says that a limit of memory that was asked for is not enforced on the node of p,
// unless --quiet was given. A job's steps, which take it from their environment, do not say it
// again.
func (o *Run) TellMemory(p *plugins.Host) {
	mb, _ := srunopt.ParseMemory(cmp.Or(o.resources.mem, o.resources.memPerCPU, "0")) // set has parsed it
	if mb == 0 || p.MemoryUnlimited == "" || o.Quiet {
		return
	}
	option := "--mem"
	if o.resources.mem == "" {
		option = "--mem-per-cpu"
	}
	terminal.Say("%s is not enforced: %s", option, p.MemoryUnlimited)
}

// setGres puts generic resources into the request: GPUs are some of them.
func (o *Resources) setGres(kind Kind, r *step.Request) (err error) {
	gres, from := input(kind, o.gres, "--gres", "GRES")
	switch {
	case o.gpus == "":
	case o.gres != "":
		gres, from = gres+",gpu:"+o.gpus, "--gres and --gpus"
	default:
		gres, from = "gpu:"+o.gpus, "--gpus"
	}
	if more := o.perGPU.gres; more != "" {
		gres, from = strings.TrimPrefix(gres+","+more, ","), "--gres and the GPUs of tasks"
	}
	if r.Gres, err = srunopt.ParseGres(gres); err != nil {
		return fmt.Errorf("%s: %w", from, err)
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
	file      string // -F
	relative  int    // -r
	perNode   int
	flags     *pflag.FlagSet // to know which of them were given
}

func (o *Nodes) bind(c *cobra.Command) {
	f := c.Flags()
	o.flags = f
	f.StringVarP(&o.count, "nodes", "N", "1", "number of nodes: 1; "+useSlurm)
	f.StringVarP(&o.want, "nodelist", "w", "", "the node to run on: this one")
	f.StringVarP(&o.not, "exclude", "x", "", "nodes to keep away from, as a list of hosts; not this one")
	f.StringVarP(&o.file, "nodefile", "F", "", "a file with the list of --nodelist")
	f.IntVarP(&o.relative, "relative", "r", 0, "the job's node to begin at: 0; "+useSlurm)
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
	if o.relative != 0 {
		return fmt.Errorf("cannot begin at node %d of the job (-r %[1]d): %s", o.relative, useSlurm)
	}
	if err := o.readFile(); err != nil {
		return err
	}
	if err := o.here(self); err != nil {
		return err
	}
	return o.setPerNode(r, inJob)
}

// readFile takes the list of --nodefile, parted by commas or lines, as --nodelist.
func (o *Nodes) readFile() error {
	if o.file == "" {
		return nil
	}
	b, err := os.ReadFile(o.file)
	if err != nil {
		return fmt.Errorf("--nodefile: cannot read the list of nodes: %w", err)
	}
	o.want = strings.Join(strings.Fields(strings.ReplaceAll(string(b), ",", " ")), ",")
	return nil
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

// Binding are the options that say where tasks run, as srun takes them.
type Binding struct {
	cpu, mem, distribution, hint string
	threadsPerCore               int
	perCore, perSocket           int
	exact, whole                 bool

	Overlap bool // share CPUs with the job's other steps
}

func (o *Binding) bind(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.cpu, "cpu-bind", "", "bind tasks to CPUs: [quiet|verbose,]TYPE, or help")
	f.StringVar(&o.mem, "mem-bind", "", "bind tasks to memory: [quiet|verbose,]TYPE, or help")
	f.StringVarP(&o.distribution, "distribution", "m", "", "deal CPUs to tasks: NODES[:SOCKETS[:CORES]][,{Pack|NoPack}]")
	f.StringVar(&o.hint, "hint", "", "kind of application: compute_bound, memory_bound, [no]multithread, or help")
	f.IntVar(&o.threadsPerCore, "threads-per-core", 0, "use at most so many threads of each core")
	f.IntVar(&o.perCore, "ntasks-per-core", 0, "at most so many tasks for each core")
	f.IntVar(&o.perSocket, "ntasks-per-socket", 0, "at most so many tasks for each socket")
}

// bindStep binds what is said of a step in a job alone.
func (o *Binding) bindStep(c *cobra.Command) {
	c.Flags().BoolVar(&o.exact, "exact", false, "in a job: as many of its CPUs as the tasks need (default)")
	c.Flags().BoolVar(&o.whole, "whole", false, "in a job: all of its CPUs")
	c.Flags().BoolVar(&o.Overlap, "overlap", false, "in a job: share CPUs with its other steps, and wait for none of them")
}

//go:embed help
var helpTexts embed.FS

// HelpOn is what --OPTION=help prints, "" for other options.
func HelpOn(option string) string {
	text, _ := helpTexts.ReadFile("help/" + option + ".txt") // no file of other options
	return string(text)
}

// bindEnv are the variables that stand for options which are not given.
var bindEnv = []struct{ flag, name string }{
	{"cpu-bind", "CPU_BIND"}, {"mem-bind", "MEM_BIND"}, {"distribution", "DISTRIBUTION"}, {"hint", "HINT"},
	{"threads-per-core", "THREADS_PER_CORE"}, {"ntasks-per-core", "NTASKS_PER_CORE"}, {"ntasks-per-socket", "NTASKS_PER_SOCKET"},
}

// BindingVariables are the names of the binding's variables, with the prefix of a verb's.
func BindingVariables(prefix string) (names []string) {
	for _, e := range bindEnv {
		names = append(names, prefix+e.name)
	}
	return names
}

// bindingFromEnv takes the options that were not given from the environment, by
// the prefix of the verb's variables; SLURM_HINT holds for every verb. Of a step
// that this command is a task of, only the verbosity counts: the rest is what that
// step has got, and its CPUs need not be the new step's.
func bindingFromEnv(f *pflag.FlagSet, prefix string) error {
	inStep := os.Getenv("SLURM_STEP_ID") != ""
	for _, e := range bindEnv {
		flag := f.Lookup(e.flag)
		if flag == nil || flag.Changed {
			continue
		}
		name := prefix + e.name
		value := os.Getenv(name)
		if value == "" && e.flag == "hint" {
			name = "SLURM_HINT"
			value = os.Getenv(name)
		}
		if inStep && strings.HasPrefix(name, "SLURM_") {
			value = outerBinding(e.flag, value)
		}
		if value == "" {
			continue
		}
		// Set by name, so that it counts as given: it overrules #SBATCH lines.
		if err := f.Set(e.flag, value); err != nil {
			return fmt.Errorf("%s=%.80q: --%s overrules it: %w", name, value, e.flag, err)
		}
	}
	return nil
}

// outerBinding is the part of an outer step's variable that has an effect in it.
func outerBinding(flag, value string) string {
	if flag != "cpu-bind" && flag != "mem-bind" {
		return ""
	}
	if word, _, _ := strings.Cut(value, ","); word == string(srunopt.Verbose) {
		return word
	}
	return ""
}

// binding reads the options.
func (o *Binding) binding() (b step.Binding, err error) {
	distribution := func(text string) (step.Distribution, error) {
		return srunopt.ParseDistribution(text, os.Getenv("SLURM_DIST_PLANESIZE"))
	}
	err = cmp.Or(given(o.cpu, &b.CPU, srunopt.ParseCPUBind), given(o.mem, &b.Mem, srunopt.ParseMemBind),
		given(o.distribution, &b.Distribution, distribution), given(o.hint, &b.Hint, srunopt.ParseHint))
	if err != nil {
		return b, err
	}
	for _, n := range []struct {
		option string
		value  int
		to     *int
	}{
		{"--threads-per-core", o.threadsPerCore, &b.ThreadsPerCore}, {"--ntasks-per-core", o.perCore, &b.NTasksPerCore},
		{"--ntasks-per-socket", o.perSocket, &b.NTasksPerSocket},
	} {
		if n.value < 0 || n.value > step.TasksMax {
			return b, fmt.Errorf("%s=%d: write a number from 1 to %d", n.option, n.value, step.TasksMax)
		}
		*n.to = n.value
	}
	if o.exact && o.whole {
		return b, Exclude("exact", "whole")
	}
	b.Whole = o.whole
	return b, nil
}

// given reads the text of an option, if it has one.
func given[T any](text string, to *T, parse func(string) (T, error)) (err error) {
	if text != "" {
		*to, err = parse(text)
	}
	return err
}

// Env is what the commands of an allocation or of a batch script find as their
// own options, as salloc and sbatch hand them on.
func (o *Binding) Env() (env []string) {
	for i, value := range []string{ // in the order of bindEnv
		o.cpu, o.mem, o.distribution, o.hint, positive(o.threadsPerCore), positive(o.perCore), positive(o.perSocket),
	} {
		if value != "" {
			env = append(env, "SLURM_"+bindEnv[i].name+"="+value)
		}
	}
	return env
}

func positive(n int) string {
	if n <= 0 {
		return ""
	}
	return strconv.Itoa(n)
}
