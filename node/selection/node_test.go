package selection

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"stepd/step"
)

// TestConfirm: jobs that run keep what they have when the node has less, and the jobs that have no
// room are named, suspended ones as well. A job that does not run any more counts for nothing.
func TestConfirm(t *testing.T) {
	full := Config{
		CPUs: []int{0, 1, 2, 3}, Memory: Memory{MB: 4000, Consumable: true},
		Gres: []Gres{{Name: "gpu", Count: 2, Files: [][]string{{"/dev/0"}, {"/dev/1"}}}, {Name: "scratch", Count: 100}, {Name: "fast", Count: 1, NoConsume: true}},
	}
	gres := func(list ...Gres) func(*Config) { return func(c *Config) { c.Gres = list } }
	for _, c := range []struct {
		name string
		less func(*Config)
		says string // "" is that all fit
	}{
		{"as before", func(*Config) {}, ""},
		{"more", func(c *Config) { c.CPUs, c.Memory.MB = []int{0, 1, 2, 3, 4}, 5000 }, ""},
		{"memory that is not given out", func(c *Config) { c.Memory = Memory{MB: 1000} }, ""},
		{"memory for all but the last", func(c *Config) { c.Memory.MB = 3000 }, "3 1000 MB (the node has 3000 MB, its jobs 3500 MB)"},
		{"memory for none", func(c *Config) { c.Memory.MB = 2000 }, "1 2500 MB (the node has 2000 MB, its jobs 3500 MB); 3 1000 MB (the node has 2000 MB, its jobs 3500 MB)"},
		{"fewer CPUs", func(c *Config) { c.CPUs = []int{0, 1} }, "3 CPUs 2 (the node has CPUs 0-1)"},
		{"a spec CPU", func(c *Config) { c.CPUs, c.Spec = []int{0, 2, 3}, []int{1} }, "2 CPUs 1 (the node has CPUs 0,2-3)"},
		{"other CPUs", func(c *Config) { c.CPUs = []int{4, 5} }, "1 CPUs 0 (the node has CPUs 4-5); 2 CPUs 1 (the node has CPUs 4-5); 3 CPUs 2 (the node has CPUs 4-5)"},
		{"a device less", gres(Gres{Name: "gpu", Count: 1, Files: [][]string{{"/dev/0"}}}, full.Gres[1], full.Gres[2]), "2 gpu:1(IDX:1) (the node has gpu:1)"},
		{"another type", gres(Gres{Name: "gpu", Type: "a", Count: 2, Files: full.Gres[0].Files}, full.Gres[1], full.Gres[2]), "1 gpu:1(IDX:0) (the node has gpu:a:2); 2 gpu:1(IDX:1) (the node has gpu:a:2)"},
		{"less of an amount", gres(full.Gres[0], Gres{Name: "scratch", Count: 70}, full.Gres[2]), "3 scratch:40 (the node has scratch:70)"},
		{"no gres", gres(), "1 gpu:1(IDX:0),scratch:40,fast:1 (the node has none); 2 gpu:1(IDX:1),fast:1 (the node has none); 3 scratch:40 (the node has none)"},
		{"all at once", func(c *Config) { c.CPUs, c.Memory.MB, c.Gres = []int{0, 1}, 3000, full.Gres[:1] }, "1 scratch:40,fast:1 (the node has gpu:2); 2 fast:1 (the node has gpu:2); 3 CPUs 2 (the node has CPUs 0-1), 1000 MB (the node has 3000 MB, its jobs 3500 MB), scratch:40 (the node has gpu:2)"},
	} {
		for _, kind := range []string{Linear, ConsTres} {
			cfg := full
			cfg.Type = kind
			c.less(&cfg)
			n := New(cfg)
			device := func(i int) step.GresAlloc { return step.GresAlloc{Name: "gpu", Count: 1, Index: []int{i}} }
			scratch, fast := step.GresAlloc{Name: "scratch", Count: 40}, step.GresAlloc{Name: "fast", Count: 1}
			jobs := []*Job{
				n.JobInit(3, Saved{Share: Share{CPUs: []int{2}, MB: 1000, Gres: []step.GresAlloc{scratch}}, Suspended: true}),
				n.JobInit(2, Saved{Share: Share{CPUs: []int{1}, Gres: []step.GresAlloc{device(1), fast}}}),
				n.JobInit(1, Saved{Share: Share{CPUs: []int{0}, MB: 2500, Gres: []step.GresAlloc{device(0), scratch, fast}}}),
			}
			n.JobInit(4, Saved{Share: Share{CPUs: []int{3}, MB: 500}})
			before := n.Info()
			var said []string
			for _, e := range n.Confirm(jobs) {
				said = append(said, fmt.Sprint(e.Job.ID, " ", e.What))
			}
			if got := strings.Join(said, "; "); got != c.says {
				t.Errorf("%s, %s: %q, want %q", c.name, kind, got, c.says)
			}
			if after := n.Info(); after.UsedMB != 4000 || !reflect.DeepEqual(before, after) {
				t.Errorf("%s, %s: the node has %+v, and had %+v", c.name, kind, after, before)
			}
		}
	}
}

// TestHeldError: the jobs have numbers, but for those that are being started.
func TestHeldError(t *testing.T) {
	e := &HeldError{CPUs: []int{0, 1}, Jobs: []uint32{0, 0, 3, 5}}
	if got, want := e.Error(), "its CPUs 0-1 were given to other jobs while it was suspended: a job that is being started, job 3, job 5"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
