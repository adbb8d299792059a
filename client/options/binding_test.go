package options

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/srunopt"
	"stepd/step"
)

// bindingVerb is a verb with the options of binding and nothing else.
func bindingVerb() (*cobra.Command, *Binding) {
	o := &Binding{}
	c := &cobra.Command{Use: "x"}
	o.bind(c)
	o.bindStep(c)
	return c, o
}

func TestBindingFromEnv(t *testing.T) {
	verbose := step.Binding{CPU: step.CPUBind{Verbosity: srunopt.Verbose}}
	for _, c := range []struct {
		name   string
		prefix string
		env    map[string]string
		args   []string
		want   step.Binding
	}{
		{"nothing", "SLURM_", nil, nil, step.Binding{}},
		{"srun's", "SLURM_", map[string]string{"SLURM_CPU_BIND": "cores", "SLURM_MEM_BIND": "local", "SLURM_NTASKS_PER_CORE": "2"}, nil,
			step.Binding{CPU: step.CPUBind{Kind: srunopt.CPUBindCores}, Mem: step.MemBind{Kind: srunopt.MemBindLocal}, NTasksPerCore: 2}},
		{"the command line wins", "SLURM_", map[string]string{"SLURM_CPU_BIND": "nonsense"}, []string{"--cpu-bind=rank"}, step.Binding{CPU: step.CPUBind{Kind: srunopt.CPUBindRank}}},
		{"a plane", "SLURM_", map[string]string{"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "3"}, nil,
			step.Binding{Distribution: step.Distribution{Nodes: "plane", Plane: 3, Levels: 1}}},
		{"sbatch's, and not srun's", "SBATCH_", map[string]string{"SBATCH_CPU_BIND": "threads", "SLURM_MEM_BIND": "local"}, nil, step.Binding{CPU: step.CPUBind{Kind: srunopt.CPUBindThreads}}},
		{"the hint is everybody's", "SALLOC_", map[string]string{"SLURM_HINT": "nomultithread"}, nil, step.Binding{Hint: srunopt.HintNoMultithread}},
		{"its own goes before", "SALLOC_", map[string]string{"SLURM_HINT": "nomultithread", "SALLOC_HINT": "multithread"}, nil, step.Binding{Hint: srunopt.HintMultithread}},
		{"in a step only the word counts", "SLURM_", map[string]string{
			"SLURM_STEP_ID": "0", "SLURM_CPU_BIND": "verbose,mask_cpu:0x10001", "SLURM_MEM_BIND": "quiet,map_mem:1", "SLURM_HINT": "multithread", "SLURM_DISTRIBUTION": "cyclic", "SLURM_THREADS_PER_CORE": "1",
		}, nil, verbose},
		{"whole", "SLURM_", nil, []string{"--whole"}, step.Binding{Whole: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, e := range bindEnv {
				for _, prefix := range []string{"SLURM_", "SALLOC_", "SBATCH_"} {
					t.Setenv(prefix+e.name, "")
				}
			}
			t.Setenv("SLURM_STEP_ID", "")
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			cmd, o := bindingVerb()
			if err := cmd.ParseFlags(c.args); err != nil {
				t.Fatal(err)
			}
			if err := bindingFromEnv(cmd.Flags(), c.prefix); err != nil {
				t.Fatal(err)
			}
			if got, err := o.binding(); err != nil || got != c.want {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
	t.Setenv("SLURM_THREADS_PER_CORE", "many")
	cmd, _ := bindingVerb()
	if err := bindingFromEnv(cmd.Flags(), "SLURM_"); err == nil || !strings.Contains(err.Error(), `SLURM_THREADS_PER_CORE="many": --threads-per-core overrules it`) {
		t.Errorf("got %v", err)
	}
}

func TestBindingOptions(t *testing.T) {
	for args, want := range map[string]string{
		"--cpu-bind=core": "no type of binding", "--mem-bind=map_mem": "the list is empty", "-m plane": "the size of a plane", "--hint=x": "no hint",
		"--ntasks-per-core=-2": "--ntasks-per-core=-2", "--exact --whole": "exclude each other",
	} {
		cmd, o := bindingVerb()
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if _, err := o.binding(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
	// What is handed on to the steps of a job means the same there.
	cmd, o := bindingVerb()
	if err := cmd.ParseFlags(strings.Fields("--cpu-bind=v,map_cpu:0,1*2 --mem-bind=local -m block:fcyclic,Pack --hint=multithread --ntasks-per-socket=4")); err != nil {
		t.Fatal(err)
	}
	want, err := o.binding()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLURM_STEP_ID", "")
	for _, e := range o.Env() {
		name, value, _ := strings.Cut(e, "=")
		t.Setenv(name, value)
	}
	cmd, o = bindingVerb()
	if err := bindingFromEnv(cmd.Flags(), "SLURM_"); err != nil {
		t.Fatal(err)
	}
	if got, err := o.binding(); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}
