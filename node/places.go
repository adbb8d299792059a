package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
	"stepd/step/launch"
)

// places makes the places of jobs and steps, and confines them there.
type places struct {
	*Config
	drain func(reason string)
	fault func(reason string) // drains until Node.able
}

// check refuses a step whose limits cannot be had, before it has a number.
// The error is a gRPC status.
func (p *places) check(spec *step.Spec) error {
	if p.Limits == nil {
		return nil
	}
	_, err := p.Limits.Plan(spec)
	if err == nil {
		return nil
	}
	blameNode(err, p.drain)
	return api.NewError(api.ResourceExhausted, "the step cannot be confined: "+err.Error())
}

// blameNode drains the node where it is at fault.
func blameNode(err error, drain func(reason string)) {
	if fault, ok := errors.AsType[*launch.FaultError](err); ok {
		drain(fault.Error())
	}
}

// contain makes the job's container.
func (p *places) contain(ctx context.Context, job uint32, user step.User) error {
	p.debug(p.Log.WithField("job", job), "JobContainer", "create for uid %d", user.UID)
	err := p.Containers.Create(ctx, job, user)
	blameNode(err, p.fault)
	return err
}

// addPID adds a process to the job's container. That is for its messages: nothing depends on it.
func (p *places) addPID(job uint32, pid int, uid uint32) {
	log := p.Log.WithField("job", job)
	p.debug(log, "JobContainer", "add_pid %d of uid %d", pid, uid)
	if err := p.Containers.AddPID(job, pid, uid); err != nil {
		log.Debugf("%v", err) // it may have ended already
	}
}

// uncontain removes the job's container.
func (p *places) uncontain(ctx context.Context, job uint32) error {
	p.debug(p.Log.WithField("job", job), "JobContainer", "delete")
	return p.Containers.Delete(ctx, job)
}

// apply writes limits of a job or a step.
func (p *places) apply(log *logrus.Entry, writes []step.CgroupWrite) error {
	for _, w := range writes {
		p.debug(log, "Cgroup", "%s = %s", w.Path, w.Value)
	}
	return p.Limits.Apply(writes)
}

// plan decides the step's limits and tells its spec of them.
func (p *places) plan(spec *step.Spec) (*launch.LimitPlan, error) {
	if p.Limits == nil {
		return &launch.LimitPlan{}, nil
	}
	plan, err := p.Limits.Plan(spec)
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
	if p.Limits == nil {
		return p.Tracker.MakeStep(f.id, nil)
	}
	if err := p.confineJob(f.job, plan); err != nil {
		return StepPlace{}, err
	}
	place, err := p.Tracker.MakeStep(f.id, plan.V1)
	if err != nil {
		return place, err
	}
	for _, note := range plan.Notes {
		p.debug(f.log, "Cgroup", "%s", note)
	}
	if err := p.apply(f.log, plan.WritesOf("step")); err != nil {
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
	for _, w := range plan.WritesOf("job") {
		if !j.limited[w.Path+"="+w.Value] {
			todo = append(todo, w)
		}
	}
	if len(todo) == 0 {
		return nil
	}
	if err := p.Tracker.MakeJob(j.ID, plan.V1); err != nil {
		return err
	}
	if err := p.apply(p.Log.WithField("job", j.ID), todo); err != nil {
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

// localGres reports whether a step numbers its devices from 0: it sees no others.
func (p *places) localGres() bool { return p.Limits != nil && p.Limits.Devices() }

// blameInit names the cause where the tasks were killed with process 1 of their job's pid
// namespace: stepd sees their ends alone.
func (p *places) blameInit(rec *step.Record) {
	killed := func(t step.Task) bool { return t.Signal != nil && *t.Signal == int(unix.SIGKILL) }
	if rec.State != step.Failed || len(rec.OOM) > 0 || !slices.ContainsFunc(rec.Tasks, killed) {
		return
	}
	ns, err := p.Containers.Join(rec.ID.Job)
	ns.Close()
	if errors.Is(err, launch.ErrInitGone) {
		rec.Reason = "process 1 of the job's pid namespace was killed, and all of its processes with it; " + rec.Reason
	}
}
