package node

import (
	"errors"
	"fmt"

	"stepd/api"
	"stepd/step"
	"stepd/step/launch"
)

// places makes the places of jobs and steps, and confines them there.
type places struct {
	tracker Tracker
	limits  Limits // nil confines nothing
	drain   func(reason string)
}

// check refuses a step whose limits cannot be had, before it has a number.
// The error is a gRPC status.
func (p *places) check(spec *step.Spec) error {
	if p.limits == nil {
		return nil
	}
	_, err := p.limits.Plan(spec)
	if err == nil {
		return nil
	}
	var fault *FaultError
	if errors.As(err, &fault) {
		p.drain(fault.Error())
	}
	return api.NewError(api.ResourceExhausted, "the step cannot be confined: "+err.Error())
}

// plan decides the step's limits and tells its spec of them.
func (p *places) plan(spec *step.Spec) (*launch.LimitPlan, error) {
	if p.limits == nil {
		return &launch.LimitPlan{}, nil
	}
	plan, err := p.limits.Plan(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot confine the step: %w", err)
	}
	spec.Confine = plan.Confine
	return plan, nil
}

// place makes the step's place and writes its limits, and its job's limits
// that this noded has not written yet. The job's come first: a v1 cpuset takes
// nothing that its children exceed.
func (p *places) place(f *follower, plan *launch.LimitPlan) (StepPlace, error) {
	if p.limits == nil {
		return p.tracker.MakeStep(f.id, nil)
	}
	if err := p.confineJob(f.job, plan); err != nil {
		return StepPlace{}, err
	}
	place, err := p.tracker.MakeStep(f.id, plan.V1)
	if err != nil {
		return place, err
	}
	for _, note := range plan.Notes {
		f.log.Debug(note)
	}
	if err := p.limits.Apply(writesOf(plan, "step")); err != nil {
		if place.Leaf != nil {
			place.Leaf.Close()
		}
		return StepPlace{}, err
	}
	return place, nil
}

// confineJob writes what is new of the job's limits. Its steps may need different
// hierarchies, so that each may bring some.
func (p *places) confineJob(j *job, plan *launch.LimitPlan) error {
	j.limits.Lock()
	defer j.limits.Unlock()
	var todo []step.CgroupWrite
	for _, w := range writesOf(plan, "job") {
		if !j.limited[w.Path+"="+w.Value] {
			todo = append(todo, w)
		}
	}
	if len(todo) == 0 {
		return nil
	}
	if err := p.tracker.MakeJob(j.ID, plan.V1); err != nil {
		return err
	}
	if err := p.limits.Apply(todo); err != nil {
		return err
	}
	if j.limited == nil {
		j.limited = make(map[string]bool)
	}
	for _, w := range todo {
		j.limited[w.Path+"="+w.Value] = true
	}
	return nil
}

func writesOf(p *launch.LimitPlan, level string) []step.CgroupWrite {
	var out []step.CgroupWrite
	for _, w := range p.Writes {
		if w.Level == level {
			out = append(out, w)
		}
	}
	return out
}

// localGres reports whether a step numbers its devices from 0: it sees no others.
func (p *places) localGres() bool { return p.limits != nil && p.limits.Devices() }
