package place

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/slurmconf"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task/confine"
)

// fakePlaces is a pure v2 host whose root is a directory of the test's.
type fakePlaces struct {
	root        string
	controllers confine.Controllers
}

func (f fakePlaces) Kind() string                       { return "cgroup/v2" }
func (f fakePlaces) Controllers() confine.Controllers   { return f.controllers }
func (f fakePlaces) Roots() (string, map[string]string) { return f.root, nil }
func (f fakePlaces) Of(step.ID) confine.StepPlaces {
	job := filepath.Join(f.root, "job_1/tasks")
	return confine.StepPlaces{Tracked: job + "/step_0", JobV2: job, StepV2: job + "/step_0"}
}

// limitsOf are the limits of a site with this cgroup.conf, on a host whose root
// has these files.
func limitsOf(t *testing.T, conf func(*slurmconf.Config), files map[string]string) *limits {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c := &slurmconf.Config{TaskPlugin: []string{"task/affinity", "task/cgroup"}}
	c.Cgroup.AllowedRAMSpace, c.Cgroup.MaxRAMPercent, c.Cgroup.MaxSwapPercent, c.Cgroup.MinRAMSpace = 100, 100, 100, 30
	conf(c)
	at := fakePlaces{root, confine.Controllers{V2: []string{"cpuset", "memory"}}}
	return newLimits(c, at, Gres(c), 4<<30, true)
}

func limitedSpec(change func(*step.Spec)) *step.Spec {
	s := &step.Spec{CPUs: "0", JobCPUs: "0-1", MemoryMB: 1024, JobMemoryMB: 2048}
	if change != nil {
		change(s)
	}
	return s
}

func TestLimitsRefuse(t *testing.T) {
	for _, c := range []struct {
		name  string
		conf  func(*slurmconf.Config)
		files map[string]string
		want  string
	}{
		{"over the parent's", func(c *slurmconf.Config) { c.Cgroup.ConstrainRAMSpace = true }, map[string]string{"memory.max": "536870912"}, "it needs 1 GB of memory, and cgroup"},
		{"a limit above that is none", func(c *slurmconf.Config) { c.Cgroup.ConstrainRAMSpace = true }, map[string]string{"memory.max": "much"}, `"much" is neither a number nor "max"`},
		{"offline", func(c *slurmconf.Config) { c.Cgroup.ConstrainCores = true }, map[string]string{"cpuset.cpus.effective": "0,2-3"}, "of which 1 are offline or not in the node's cpuset (0,2-3)"},
		{"a device that is gone", func(c *slurmconf.Config) {
			c.Cgroup.ConstrainDevices = true
			c.Gres = []slurmconf.Gres{{Name: "card", Count: 1, Files: []string{"/dev/stepd-none"}}}
		}, nil, `gres/card 0: cannot find device`},
		{"a device that is none", func(c *slurmconf.Config) {
			c.Cgroup.ConstrainDevices = true
			c.Gres = []slurmconf.Gres{{Name: "card", Count: 1, Files: []string{"/etc"}}}
		}, nil, `gres/card 0: cannot use "/etc" as a device`},
	} {
		l := limitsOf(t, c.conf, c.files)
		_, err := l.Plan(limitedSpec(func(s *step.Spec) {
			s.JobGres = []step.GresAlloc{{Name: "card", Count: 1, Index: []int{0}}}
			s.StepGres = s.JobGres
		}))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Devices of all lines of a name are numbered, one node of two resources is
// refused to no job that has either, and a missing device needs no refusal.
func TestLimitsDevices(t *testing.T) {
	l := limitsOf(t, func(c *slurmconf.Config) {
		c.Cgroup.ConstrainDevices = true
		c.Gres = []slurmconf.Gres{
			{Name: "gpu", Type: "a", Count: 2, Files: []string{"/dev/null", "/dev/zero"}, Flags: []string{slurmconf.GresNvidiaEnv}},
			{Name: "gpu", Type: "b", Count: 1, Files: []string{"/dev/full"}},
			{Name: "shard", Count: 1, Files: []string{"/dev/zero"}},
			{Name: "gone", Count: 1, Files: []string{"/dev/stepd-none"}},
			{Name: "none", Count: 1, Files: []string{"/etc"}},
			{Name: "scratch", Count: 100},
		}
	}, nil)
	if g := l.gres; g[0].First != 0 || g[1].First != 2 || g[2].First != 0 || strings.Join(g[0].Env, " ") != "CUDA_VISIBLE_DEVICES" || g[5].Files != nil {
		t.Errorf("numbered as %+v", g)
	}
	p, err := l.Plan(limitedSpec(func(s *step.Spec) {
		s.JobGres = []step.GresAlloc{{Name: "gpu", Type: "a", Count: 1, Index: []int{0}}, {Name: "shard", Count: 1, Index: []int{0}}}
		s.StepGres = s.JobGres[:1]
	}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range p.Writes {
		got = append(got, w.Level+" "+w.Value)
	}
	if want := "job deny c 1:7 rwm; step deny c 1:5 rwm"; strings.Join(got, "; ") != want {
		t.Errorf("writes %q, want %q", got, want)
	}
	if !l.Devices() {
		t.Error("a step does not see its own devices alone")
	}
}

// A node that a driver takes away and makes again is refused to who began in
// between.
func TestLimitsRemembersDevices(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "card0")
	if err := os.Symlink("/dev/full", path); err != nil {
		t.Fatal(err)
	}
	l := limitsOf(t, func(c *slurmconf.Config) {
		c.Cgroup.ConstrainDevices = true
		c.Gres = []slurmconf.Gres{{Name: "card", Count: 1, Files: []string{path}}}
	}, nil)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	p, err := l.Plan(limitedSpec(nil))
	if err != nil || len(p.Writes) != 1 || p.Writes[0].Value != "deny c 1:7 rwm" {
		t.Errorf("%+v, %v", p, err)
	}
	_, err = l.Plan(limitedSpec(func(s *step.Spec) { s.JobGres = []step.GresAlloc{{Name: "card", Count: 1, Index: []int{0}}} }))
	var fault *launch.FaultError
	if !errors.As(err, &fault) {
		t.Errorf("a device that was given and is gone: %v, want a fault of the node", err)
	}
}

// What dies together for want of memory: the user says, else the site, else the
// kind of program.
func TestLimitsOOMGroup(t *testing.T) {
	yes, no := true, false
	for _, c := range []struct {
		name string
		site bool
		spec func(*step.Spec)
		want step.OOMGroup
	}{
		{"a plain step", false, nil, step.OOMGroupNone},
		{"MPI", false, func(s *step.Spec) { s.MPI = "pmi2" }, step.OOMGroupStep},
		{"mpi=none", false, func(s *step.Spec) { s.MPI = "none" }, step.OOMGroupNone},
		{"a batch script is no MPI program", false, func(s *step.Spec) { s.MPI, s.Script = "pmi2", []byte("#!") }, step.OOMGroupNone},
		{"the site", true, nil, step.OOMGroupStep},
		{"the user", false, func(s *step.Spec) { s.OOMKillStep = &yes }, step.OOMGroupStep},
		{"the user, against both", true, func(s *step.Spec) { s.MPI, s.OOMKillStep = "pmi2", &no }, step.OOMGroupNone},
	} {
		l := limitsOf(t, func(conf *slurmconf.Config) {
			conf.Cgroup.ConstrainRAMSpace, conf.TaskPluginParam.OOMKillStep = true, c.site
		}, nil)
		p, err := l.Plan(limitedSpec(c.spec))
		if err != nil || p.Confine.OOMGroup != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, p.Confine.OOMGroup, err, c.want)
		}
	}
}
