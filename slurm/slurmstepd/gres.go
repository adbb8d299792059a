package slurmstepd

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"stepd/slurm/gres"
	"stepd/slurm/spec"
	"stepd/slurm/wire"
	"stepd/step"
	"stepd/task/confine"
	"stepd/task/device"
)

// planGres decides what the step has of the node's generic resources, and returns the devices
// that it has not.
func (d *daemon) planGres(constrained bool) (confine.Denied, error) {
	cred := d.cred()
	plan, err := gres.Of(d.stream, gres.Step{
		Node: spec.JobNode(d.stream.Conf, cred), Tasks: len(d.spec.LocalRanks()), Constrained: constrained,
		CPUs: func(local int) []int { return spec.TaskCPUs(d.spec, local) },
	})
	if err != nil {
		return confine.Denied{}, &refusal{unix.EINVAL, err}
	}
	d.spec.StepGres = plan.Allocated()
	plan.Clean(d.spec)
	d.gres = &gres.Plugin{Plan: plan, Constrained: constrained, Speaker: d.spec.Speaker, Say: func(line string) { d.aud.Say(line) }}
	for _, path := range plan.Paths {
		if _, err := device.Stat(path); err != nil { // the step runs, as under Slurm's own
			d.gres.Lines = append(d.gres.Lines, fmt.Sprintf("%s: error: gres: %v; slurmd has found it when it started", d.spec.Speaker, err))
		}
	}
	// Slurm's own line where no library of the vendor sets them.
	isGPU := func(g step.GresAlloc) bool { return g.Name == "gpu" }
	if l := d.stream.Launch; l != nil && l.GresFreq != "" && slices.ContainsFunc(d.spec.StepGres, isGPU) {
		d.gres.Lines = append(d.gres.Lines, "GpuFreq=control_disabled")
	}
	return confine.Denied{Job: plan.JobDenied, Step: plan.StepDenied, Tasks: plan.TaskDenied}, nil
}

// cred is the step's credential.
func (d *daemon) cred() *wire.Cred {
	if d.stream.Batch != nil {
		return d.stream.Batch.Cred
	}
	return d.stream.Launch.Cred
}
