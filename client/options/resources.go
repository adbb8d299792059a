package options

import (
	"cmp"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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
