package node

import (
	"errors"
	"fmt"

	"stepd/api"
	"stepd/step"
)

// confinable refuses a step whose limits cannot be had, before it has a number.
// The error is a gRPC status.
func (n *Node) confinable(spec *step.Spec) error {
	if n.cfg.Limits == nil {
		return nil
	}
	_, err := n.cfg.Limits.Plan(spec)
	if err == nil {
		return nil
	}
	var fault *FaultError
	if errors.As(err, &fault) {
		n.health.Drain(fault.Error())
	}
	return api.NewError(api.ResourceExhausted, "the step cannot be confined: "+err.Error())
}

// plan decides the step's limits and tells its spec of them.
func (n *Node) plan(spec *step.Spec) (*step.LimitPlan, error) {
	if n.cfg.Limits == nil {
		return &step.LimitPlan{}, nil
	}
	p, err := n.cfg.Limits.Plan(spec)
	if err != nil {
		return nil, fmt.Errorf("cannot confine the step: %w", err)
	}
	spec.Confine = p.Confine
	return p, nil
}

// place makes the step's place and writes its limits, and its job's limits
// that this noded has not written yet. The job's come first: a v1 cpuset takes
// nothing that its children exceed.
func (n *Node) place(f *follower, p *step.LimitPlan) (StepPlace, error) {
	if n.cfg.Limits == nil {
		return n.cfg.Tracker.MakeStep(f.id, nil)
	}
	if err := n.confineJob(f.job, p); err != nil {
		return StepPlace{}, err
	}
	place, err := n.cfg.Tracker.MakeStep(f.id, p.V1)
	if err != nil {
		return place, err
	}
	for _, note := range p.Notes {
		f.log.Debug(note)
	}
	if err := n.cfg.Limits.Apply(writesOf(p, "step")); err != nil {
		if place.Leaf != nil {
			place.Leaf.Close()
		}
		return StepPlace{}, err
	}
	return place, nil
}

// confineJob writes what is new of the job's limits. Its steps may need different
// hierarchies, so that each may bring some.
func (n *Node) confineJob(j *job, p *step.LimitPlan) error {
	j.limits.Lock()
	defer j.limits.Unlock()
	var todo []step.CgroupWrite
	for _, w := range writesOf(p, "job") {
		if !j.limited[w.Path+"="+w.Value] {
			todo = append(todo, w)
		}
	}
	if len(todo) == 0 {
		return nil
	}
	if err := n.cfg.Tracker.MakeJob(j.ID, p.V1); err != nil {
		return err
	}
	if err := n.cfg.Limits.Apply(todo); err != nil {
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

func writesOf(p *step.LimitPlan, level string) []step.CgroupWrite {
	var out []step.CgroupWrite
	for _, w := range p.Writes {
		if w.Level == level {
			out = append(out, w)
		}
	}
	return out
}

// localGres reports whether a step numbers its devices from 0: it sees no others.
func (n *Node) localGres() bool { return n.cfg.Limits != nil && n.cfg.Limits.Devices() }
