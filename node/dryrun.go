package node

import (
	"context"

	"stepd/api"
	"stepd/step"
	"stepd/step/launch"
)

// DryRun returns what Run would do. It goes the way of Run up to the number, with the same
// plan, and gives the place back.
func (n launcher) DryRun(ctx context.Context, caller api.Peer, in *api.RunRequest) (*api.DryRunReply, error) {
	req := in.Request
	if err := n.check(req); err != nil {
		return nil, err
	}
	user, err := n.userFor(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	a, err := n.reg.seek(req, user.UID, caller.Root()).now(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { n.endJob(n.reg.abandon(a)) }()
	spec := n.spec(req, user, a)
	want := (&order{req: req}).wants(a)
	job := n.implicitJob(spec, want)
	if a.job != nil {
		job.ID = a.job.ID
	}
	if spec.ID, err = n.store.NextID(want, &job, a.job != nil); err != nil {
		return nil, numberError(err, req)
	}
	plan, err := n.places.plan(spec)
	if err != nil {
		return nil, api.NewError(api.ResourceExhausted, err.Error())
	}
	d, err := n.dryRunOf(ctx, spec, plan)
	if err != nil {
		return nil, err
	}
	return &api.DryRunReply{Plan: d}, nil
}

func (n launcher) dryRunOf(ctx context.Context, spec *step.Spec, plan *launch.LimitPlan) (*api.DryRun, error) {
	d := &api.DryRun{
		Schema: step.Schema, ID: spec.ID, User: spec.User.Name, UID: spec.User.UID, Node: spec.NodeName,
		Argv: spec.Argv, Cwd: spec.Cwd, NTasks: spec.NTasks, CPUs: spec.CPUs,
		Gres:     append([]step.GresAlloc{}, spec.StepGres...),
		GresEnv:  append([]string{}, spec.GresEnv...),
		Binding:  []string{},
		OOMGroup: plan.Confine.OOMGroup, Memory: append([]step.MemoryLevel{}, plan.Confine.Memory...),
		Writes:  append(append([]step.CgroupWrite{}, plan.Writes...), plan.TaskWrites...),
		Notes:   append([]string{}, plan.Notes...),
		TaskEnv: []string{}, Environment: []api.EnvChange{}, ResourceLimits: []api.ResourceLimit{}, Mounts: []string{}, Plugins: []api.DryPlugin{},
	}
	if mb := spec.MemoryMB; mb > 0 {
		d.MemoryMB = &mb
	}
	if n.cfg.Binding != nil {
		lines, err := n.cfg.Binding(spec)
		if err != nil {
			return nil, api.NewError(api.InvalidArgument, err.Error())
		}
		d.Binding = append(d.Binding, lines...)
	}
	if n.cfg.Preview != nil {
		if err := n.cfg.Preview(spec, d); err != nil {
			return nil, api.NewError(api.InvalidArgument, err.Error())
		}
	}
	if n.cfg.Plugins == nil {
		return d, nil
	}
	for _, p := range n.cfg.Plugins(ctx) {
		if p.Path != p.File { // else a finding that is no plugin
			d.Plugins = append(d.Plugins, api.DryPlugin{Path: p.Path, Required: p.Required, State: p.State, Problem: p.Problem, Options: []string{}})
		}
	}
	return d, nil
}
