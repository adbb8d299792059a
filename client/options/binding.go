package options

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/srunopt"
	"stepd/step"
)

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

const cpuBindHelp = `CPU bind options:
    --cpu-bind=         bind tasks to CPUs
        q[uiet]         say nothing of it (default)
        v[erbose]       report each task's binding on its stderr
        no[ne]          do not bind tasks to single CPUs
        sockets         each task to the sockets of its CPUs
        cores           each task to the cores of its CPUs
        threads         each task to its CPUs (hardware threads)
        ldoms           each task to the memory nodes of its CPUs
        boards          each task to the boards of its CPUs
        rank            task n to the n-th CPU of the step
        map_cpu:LIST    task n to the n-th CPU number of the list
        mask_cpu:LIST   task n to the n-th mask of the list, hexadecimal
        rank_ldom       task n to the n-th memory node of the step
        map_ldom:LIST   task n to the CPUs of the n-th memory node of the list
        mask_ldom:LIST  task n to the CPUs of the memory nodes of the n-th mask
        help            show this
    LIST is ITEM[*TIMES][,ITEM[*TIMES]...] and begins again where it is too short.
    Without a type: sockets, cores or threads, if there are as many as the tasks
    have CPUs; else all tasks share the step's CPUs.
`

const memBindHelp = `Memory bind options:
    --mem-bind=         bind tasks to memory nodes
        q[uiet]         say nothing of it (default)
        v[erbose]       report each task's binding on its stderr
        no[ne]          do not bind memory (default)
        local           memory of the node on which the task runs
        rank            task n to memory node n
        map_mem:LIST    task n to the n-th node number of the list
        mask_mem:LIST   task n to the nodes of the n-th mask, hexadecimal
        p[refer]        the first node of a task, and others where it has no room
        sort, nosort    accepted, without effect
        help            show this
    LIST is ITEM[*TIMES][,ITEM[*TIMES]...] and begins again where it is too short.
`

const hintHelp = `Application hint options:
    --hint=             bind tasks as suits the application
        compute_bound   to whole cores
        memory_bound    to whole cores
        multithread     to hardware threads
        nomultithread   to hardware threads, one of each core
        help            show this
`

// HelpOn is what --OPTION=help prints, "" for other options.
func HelpOn(option string) string {
	return map[string]string{"cpu-bind": cpuBindHelp, "mem-bind": memBindHelp, "hint": hintHelp}[option]
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
