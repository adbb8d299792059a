package affinity

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/srunopt"
	"stepd/step"
	"stepd/step/launch"
)

// Config is what a Plugin is told.
type Config struct {
	Spec *step.Spec
	// Sys is /sys.
	Sys fs.FS
	// Say sends a line to the user's stderr; Log one to the administrator.
	Say func(line string)
	Log func(text string)
}

// Plugin binds the tasks of one step; it is a task.Plugin. Its hooks are called
// after task/cgroup's, whatever slurm.conf's order is: a process that enters a cpuset loses
// the CPUs that were set for it.
type Plugin struct {
	cfg  Config
	plan *Plan
}

// New makes the plugin of a step.
func New(cfg Config) *Plugin { return &Plugin{cfg: cfg} }

// Name is slurm.conf's name for it.
func (p *Plugin) Name() string { return "task/affinity" }

// PreSetuid plans the binding: what cannot be had ends the step before anything
// of the user's has run.
func (p *Plugin) PreSetuid() error {
	in, err := InputOf(p.cfg.Spec, p.cfg.Sys)
	if err != nil {
		return err
	}
	if p.plan, err = MakePlan(in); err != nil {
		return err
	}
	for _, n := range p.plan.Notes {
		p.cfg.Log(p.Name() + ": " + n)
	}
	return nil
}

// InputOf is the input of a step's plan. A batch script is no MPI task: what its
// job asks for is for the steps in it, and it has all of the job's CPUs.
func InputOf(spec *step.Spec, sys fs.FS) (Input, error) {
	cpus, err := step.ParseCPUList(spec.CPUs)
	if err != nil {
		return Input{}, fmt.Errorf("cannot bind tasks: the step's CPUs: %w", err)
	}
	topology, err := ReadTopology(sys, cpus)
	if err != nil {
		return Input{}, err
	}
	in := Input{
		Binding: spec.Binding, NTasks: spec.LocalTasks(), Ranks: spec.LocalRanks(), CPUsPerTask: spec.CPUsPerTask, Overcommit: spec.Overcommit,
		OwnJob: spec.Request.Job == nil, Topology: topology,
	}
	if spec.Affinity != nil {
		in.Site = *spec.Affinity
	}
	if unbound(spec) {
		in.Binding = step.Binding{CPU: step.CPUBind{Verbosity: srunopt.Quiet, Kind: srunopt.CPUBindNone}}
		in.CPUsPerTask = 1
	}
	return in, nil
}

// unbound reports whether the step only starts others, which are bound: a batch script, or
// the shell of an allocation.
func unbound(spec *step.Spec) bool {
	return spec.ID.Step == step.BatchStep || spec.ID.Step == step.InteractiveStep
}

// PreLaunch sets the tasks' variables of their binding, and gives them what each must set
// for itself.
func (p *Plugin) PreLaunch(l *launch.Launch) error {
	l.MemPolicies = append(l.MemPolicies, p.plan.Mem...)
	if !unbound(p.cfg.Spec) {
		l.CommonEnv = append(l.CommonEnv, p.plan.Env()...)
		l.Unset = append(l.Unset, p.plan.stale()...)
	}
	return nil
}

// PreLaunchPriv binds one task, while it waits at the gate. One that is gone
// already is no error of ours: its end is told with what ended it.
func (p *Plugin) PreLaunchPriv(local, pid int) error {
	if p.plan.CPUs != nil {
		err := linux.SetAffinity(pid, p.plan.CPUs[local])
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot bind task %d to CPUs %s: %w", p.plan.rank(local), p.plan.CPUs[local], err)
		}
	}
	cpu, mem := p.plan.Verbose()
	node := p.cfg.Spec.NodeName
	if cpu {
		// What the kernel has made of it: it leaves out what is not in the cpuset.
		has, err := linux.Affinity(pid)
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return err
		}
		p.cfg.Say(p.plan.CPULine(node, local, pid, has))
	}
	if mem {
		p.cfg.Say(p.plan.MemLine(node, local, pid))
	}
	return nil
}

// PostTerm does nothing: the binding ends with the process.
func (p *Plugin) PostTerm(launch.TaskEnd) {}

// PostStep does nothing either.
func (p *Plugin) PostStep() error { return nil }
