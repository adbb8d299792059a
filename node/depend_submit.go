package node

import (
	"context"
	"errors"

	"stepd/api"
	"stepd/step"
)

const (
	// dependsMax bounds what the jobs of one submission wait for, all together, and those of
	// one user other than root: each look at the queue looks at all of it, and stores anew
	// what has changed.
	dependsMax = 20000
	// dependBytes is what one of them counts against UserRequestBytes.
	dependBytes = 64
)

// dependOrder is what the jobs of a submission wait for.
type dependOrder struct {
	all []dependency
	any bool
	// tasks are the jobs of the arrays to whose tasks of the same number tasks of this
	// array belong (aftercorr).
	tasks map[uint32]map[uint32]uint32
	// arrays are the jobs of the arrays that were read for it, by task.
	arrays map[uint32]map[uint32]uint32
}

// dependOrder finds the jobs that the request is to wait for. It may have to read many
// records: nobody is to wait for that, and so the caller does not hold change.
func (n *Node) dependOrder(ctx context.Context, req *step.Request, array *step.Array) (*dependOrder, error) {
	o := &dependOrder{tasks: make(map[uint32]map[uint32]uint32), arrays: make(map[uint32]map[uint32]uint32)}
	if req.Dependency == "" {
		return o, nil
	}
	asked, err := step.ParseDependencies(req.Dependency)
	if err != nil {
		return nil, api.Errorf(api.InvalidArgument, "dependency: %v", err)
	}
	if len(asked.List)*len(array.Tasks) > dependsMax {
		return nil, api.Errorf(api.InvalidArgument, "dependency: %d tasks that wait for %d jobs each: let one job wait for those, and the array for that", len(array.Tasks), len(asked.List))
	}
	o.any = asked.Any
	for _, d := range asked.List {
		one := dependency{Dependency: d}
		if one.On, err = o.on(ctx, n, d); err != nil {
			return nil, err
		}
		if one.ofArray() && d.Kind == step.DependAfterCorr && req.Array != "" {
			if o.tasks[d.Job], err = o.array(ctx, n, d.Job); err != nil {
				return nil, err
			}
			for _, task := range array.Tasks {
				if o.tasks[d.Job][task] == 0 {
					return nil, api.Errorf(api.InvalidArgument, "dependency: %s: there is no such job \"%d_%d\"", d, d.Job, task)
				}
			}
		}
		o.all = append(o.all, one)
	}
	return o, nil
}

// array are the jobs of an array by task. Each array is read once, whatever names it.
func (o *dependOrder) array(ctx context.Context, n *Node, array uint32) (map[uint32]uint32, error) {
	jobs := o.arrays[array]
	if jobs != nil {
		return jobs, nil
	}
	jobs, err := n.store.arrayJobs(ctx, array)
	switch {
	case ctx.Err() != nil:
		return nil, api.ContextError(ctx.Err())
	case err != nil:
		return nil, api.NewError(api.Internal, err.Error())
	}
	o.arrays[array] = jobs
	return jobs, nil
}

// on is the job that d is about: 0 of a singleton, and of all of an array.
func (o *dependOrder) on(ctx context.Context, n *Node, d step.Dependency) (uint32, error) {
	none := api.Errorf(api.InvalidArgument, "dependency: %s: no such batch job is known here", d)
	switch {
	case d.Kind == step.DependSingleton:
		return 0, nil
	case d.Task != nil:
		jobs, err := o.array(ctx, n, d.Job)
		if err != nil {
			return 0, err
		}
		if jobs[*d.Task] == 0 {
			return 0, none
		}
		return jobs[*d.Task], nil
	}
	rec, err := n.store.step(step.ID{Job: d.Job, Step: step.BatchStep})
	if err == nil {
		if rec.Array != nil && rec.Array.Job == d.Job {
			return 0, nil
		}
		return d.Job, nil
	}
	if !errors.Is(err, errUnknown) {
		return 0, api.NewError(api.Internal, err.Error())
	}
	// The first task of an array may be forgotten while others wait.
	if len(n.queue.list(func(q *queued) bool { return ofArray(q, d.Job) })) > 0 {
		return 0, nil
	}
	return 0, none
}

// of is what the job of an array's task waits for, or the one job there is.
func (o *dependOrder) of(task uint32) []dependency {
	if len(o.tasks) == 0 {
		return o.all // nobody changes it: changes are made to copies
	}
	own := make([]dependency, len(o.all))
	for i, d := range o.all {
		if jobs := o.tasks[d.Job]; jobs != nil && d.Kind == step.DependAfterCorr && d.ofArray() {
			d.On = jobs[task]
		}
		own[i] = d
	}
	return own
}
