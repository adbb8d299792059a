package affinity

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"stepd/internal/linux"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// played is a plugin of a step on the machine of the project, and what it said.
func played(t *testing.T, spec *step.Spec) (*Plugin, *[]string) {
	t.Helper()
	said := new([]string)
	return New(Config{
		Spec: spec, Sys: sysTree(t, "2c"),
		Say: func(line string) { *said = append(*said, line) },
		Log: func(text string) { *said = append(*said, "log: "+text) },
	}), said
}

func spec(b step.Binding) *step.Spec {
	s := &step.Spec{NodeName: "n1", CPUs: "0-1", NCPUs: 2, Site: step.Site{Affinity: &step.AffinityConf{}}}
	s.NTasks, s.CPUsPerTask, s.Binding = 2, 1, b
	return s
}

func TestPluginLaunch(t *testing.T) {
	p, said := played(t, spec(step.Binding{
		CPU: step.CPUBind{Verbosity: srunopt.Verbose, Kind: srunopt.CPUBindMap, List: "0"}, Mem: step.MemBind{Kind: srunopt.MemBindLocal, Verbosity: srunopt.Verbose},
	}))
	if err := p.PreSetuid(); err != nil {
		t.Fatal(err)
	}
	l := &launch.Launch{CommonEnv: []string{"A=b"}}
	if err := p.PreLaunch(l); err != nil {
		t.Fatal(err)
	}
	if len(l.MemPolicies) != 1 || l.MemPolicies[0].Mode != launch.MemLocal || !slices.Contains(l.CommonEnv, "SLURM_CPU_BIND=verbose,map_cpu:0") || l.CommonEnv[0] != "A=b" {
		t.Errorf("got %+v", l)
	}
	if !slices.Contains(l.Unset, "SLURM_MEM_BIND_PREFER") || slices.Contains(l.Unset, "SLURM_MEM_BIND") {
		t.Errorf("unset %q", l.Unset)
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if err := p.PreLaunchPriv(1, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if has, err := linux.Affinity(cmd.Process.Pid); err != nil || CPUSet(has).String() != "0" {
		t.Errorf("it may run on %s, %v", CPUSet(has), err)
	}
	if len(*said) != 2 || !strings.HasPrefix((*said)[0], "cpu-bind=MAP  - n1, task  1  1 [") || !strings.HasPrefix((*said)[1], "mem-bind=LOC - n1, task  1  1 [") {
		t.Errorf("it said %q", *said)
	}
	// A task that a plugin has ended in task_init_privileged: others report it.
	if err := p.PreLaunchPriv(0, 1<<30); err != nil {
		t.Errorf("a task that is gone: %v", err)
	}
}

func TestPluginRefuses(t *testing.T) {
	p, _ := played(t, spec(step.Binding{CPU: step.CPUBind{Kind: srunopt.CPUBindMap, List: "5"}}))
	if err := p.PreSetuid(); err == nil || !strings.Contains(err.Error(), "CPU 5 is not the step's: it has CPUs 0-1") {
		t.Errorf("got %v", err)
	}
}

// TestPluginBatch: what a batch job asks for is for its steps. Its script has the
// CPUs of the job, and is told nothing.
func TestPluginBatch(t *testing.T) {
	s := spec(step.Binding{CPU: step.CPUBind{Verbosity: srunopt.Verbose, Kind: srunopt.CPUBindMap, List: "5"}, Mem: step.MemBind{Kind: srunopt.MemBindRank}})
	s.ID, s.NTasks, s.CPUs, s.NCPUs = step.ID{Job: 1, Step: step.BatchStep}, 1, "1", 1
	p, said := played(t, s)
	if err := p.PreSetuid(); err != nil {
		t.Fatal(err)
	}
	l := &launch.Launch{}
	if err := p.PreLaunch(l); err != nil || len(l.CommonEnv)+len(l.Unset)+len(l.MemPolicies) > 0 {
		t.Errorf("got %+v, %v", l, err)
	}
	if p.plan.places() != "1" || len(*said) > 0 {
		t.Errorf("the script has %q, and it said %q", p.plan.places(), *said)
	}
}
