package options

import (
	"strings"
	"testing"

	"stepd/srunopt"
	"stepd/step"
)

func TestResources(t *testing.T) {
	mb := func(v uint64) *uint64 { return &v }
	for _, c := range []struct {
		name string
		kind Kind
		opt  Resources
		env  map[string]string
		want step.Request
		says string
	}{
		{"nothing", StepOfJob, Resources{}, nil, step.Request{}, ""},
		{"mem", StepOfJob, Resources{mem: "2G"}, nil, step.Request{Mem: mb(2048)}, ""},
		{"all", StepOfJob, Resources{mem: "0"}, nil, step.Request{Mem: mb(0)}, ""},
		{"from the job", StepOfJob, Resources{}, map[string]string{"SLURM_MEM_PER_CPU": "100"}, step.Request{MemPerCPU: mb(100)}, ""},
		{"over the job's", StepOfJob, Resources{mem: "5"}, map[string]string{"SLURM_MEM_PER_CPU": "100"}, step.Request{Mem: mb(5)}, ""},
		{"per cpu over the job's", StepOfJob, Resources{memPerCPU: "5"}, map[string]string{"SLURM_MEM_PER_NODE": "100"}, step.Request{MemPerCPU: mb(5)}, ""},
		{"batch", BatchJob, Resources{}, map[string]string{"SLURM_MEM_PER_NODE": "7", "SBATCH_MEM_PER_NODE": "8"}, step.Request{Mem: mb(8)}, ""},
		{"both", StepOfJob, Resources{mem: "1", memPerCPU: "1"}, nil, step.Request{}, "exclude each other"},
		{"no size", StepOfJob, Resources{mem: "much"}, nil, step.Request{}, `--mem: "much" is no size`},
		{"no size in the environment", StepOfJob, Resources{}, map[string]string{"SLURM_MEM_PER_NODE": "x"}, step.Request{}, "SLURM_MEM_PER_NODE: "},
		{"gres", StepOfJob, Resources{gres: "gpu:a100:2"}, nil, step.Request{Gres: []step.GresRequest{{Name: "gpu", Type: "a100", Count: 2}}}, ""},
		{"step gres first", StepOfJob, Resources{}, map[string]string{"SLURM_GRES": "gpu:1", "SLURM_STEP_GRES": "gpu:2"}, step.Request{Gres: []step.GresRequest{{Name: "gpu", Count: 2}}}, ""},
		{"bad gres", StepOfJob, Resources{gres: "gpu:"}, nil, step.Request{}, "--gres: "},
		{"oom", StepOfJob, Resources{oomKillStep: "2"}, nil, step.Request{}, "--oom-kill-step=2: want 0 or 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, name := range []string{"SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_GRES", "SLURM_STEP_GRES", "SLURM_OOM_KILL_STEP"} {
				t.Setenv(name, c.env[name])
			}
			for name, v := range c.env {
				t.Setenv(name, v)
			}
			var r step.Request
			err := c.opt.set(c.kind, &r)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("error %v, want %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			same := func(a, b *uint64) bool { return a == b || a != nil && b != nil && *a == *b }
			if !same(r.Mem, c.want.Mem) || !same(r.MemPerCPU, c.want.MemPerCPU) || srunopt.FormatGres(r.Gres) != srunopt.FormatGres(c.want.Gres) {
				t.Errorf("got %+v, want %+v", r, c.want)
			}
		})
	}
}

// An empty list of generic resources is not none at all, on the wire either.
func TestResourcesNone(t *testing.T) {
	o := Resources{gres: "none"}
	var r step.Request
	if err := o.set(StepOfJob, &r); err != nil || r.Gres == nil || len(r.Gres) != 0 {
		t.Errorf("--gres=none gives %#v, %v", r.Gres, err)
	}
}
