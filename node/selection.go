package node

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"stepd/api"
	"stepd/step"
)

// share is what a job has of the node, or a step of its job.
type share struct {
	cpus []int
	mb   uint64 // memory; 0 is none of its own
	gres []step.GresAlloc
	// held are the resources that no other step of the job gets; alone says so of the CPUs.
	held  []step.GresAlloc
	alone bool
}

// resources are the CPUs, the memory and the generic resources of a node, and which of them
// its jobs have. It is not safe for concurrent use.
type resources struct {
	cpus *cpuPool
	mem  memPool
	gres *gresPool
}

// newResources returns the resources of a node of which no job has any. cores are the cores of
// the CPUs; nil where they are not known.
func newResources(cpus []int, mem Memory, gres []step.Gres, cores ...Core) *resources {
	return &resources{newCPUPool(cpus, cores...), memPool{Memory: mem}, newGresPool(gres)}
}

// clone returns a copy, on which a choice can be tried.
func (r *resources) clone() *resources {
	cpus := &cpuPool{cpus: r.cpus.cpus, uses: maps.Clone(r.cpus.uses), cores: r.cpus.cores}
	return &resources{cpus, r.mem, &gresPool{items: slices.Clone(r.gres.items)}}
}

// take chooses a job's share. waits reports that the release of another job's share may change
// the answer.
func (r *resources) take(req *step.Request) (sh share, waits bool, err error) {
	if sh.cpus, err = r.cpus.takeFor(req); err != nil {
		return share{}, req.NTasks*req.CPUsPerTask <= len(r.cpus.cpus), err
	}
	if sh.mb, err = r.mem.forJob(req, len(sh.cpus)); err != nil {
		r.cpus.release(sh.cpus)
		return share{}, false, err
	}
	if err = r.mem.take(sh.mb); err != nil {
		r.cpus.release(sh.cpus)
		return share{}, true, err
	}
	if sh.gres, err = r.gres.take(req.Gres, false); err != nil {
		r.cpus.release(sh.cpus)
		r.mem.release(sh.mb)
		return share{}, mayWait(err), fmt.Errorf("the step does not fit: %w", err)
	}
	return sh, false, nil
}

// neverFits returns why the request would not fit on the empty node either, nil where it would.
func (r *resources) neverFits(req *step.Request) error {
	empty := r.clone()
	empty.cpus.uses, empty.mem.used = make(map[int]int), 0
	for i := range empty.gres.items {
		empty.gres.items[i].used = 0
	}
	_, _, err := empty.take(req)
	return err
}

// hold counts the share of a job that runs already: a restarted noded takes it back.
func (r *resources) hold(sh share) {
	r.cpus.hold(sh.cpus)
	r.mem.hold(sh.mb)
	r.gres.hold(sh.gres)
}

// release undoes take or hold.
func (r *resources) release(sh share) {
	r.cpus.release(sh.cpus)
	r.mem.release(sh.mb)
	r.gres.release(sh.gres)
}

// freeCPUs counts the CPUs that no job has.
func (r *resources) freeCPUs() int { return r.cpus.free() }

// usedMB is the memory that jobs have, in MB.
func (r *resources) usedMB() uint64 { return r.mem.used }

// gresDocs are the generic resources in the node document.
func (r *resources) gresDocs() []api.NodeGres { return r.gres.doc() }

// jobResources are the resources of a job, and which of them its steps have.
type jobResources struct {
	mem  *memPool // the node's
	cpus *cpuPool
	// alone counts the CPUs that one step has for itself.
	alone *cpuPool
	gres  *gresPool
	all   share
}

// job returns the resources of a job of this share, of which no step has any.
func (r *resources) job(sh share) *jobResources {
	return &jobResources{&r.mem, newCPUPool(sh.cpus, coresOf(r.cpus.cores, sh.cpus)...), newCPUPool(sh.cpus), jobGresPool(sh.gres), sh}
}

// takeCPUs chooses a step's CPUs: the CPUs that the other steps use least, or, with alone,
// CPUs that no other step has for itself. ok is false where too few of the latter are free.
func (j *jobResources) takeCPUs(req *step.Request, alone bool) (cpus []int, ok bool, err error) {
	if !alone {
		cpus, err = j.cpus.shareFor(req)
		return cpus, err == nil, err
	}
	free := slices.DeleteFunc(slices.Clone(j.cpus.cpus), func(c int) bool { return j.alone.uses[c] > 0 })
	if len(free) < j.wanted(req) {
		return nil, false, nil
	}
	sub := &cpuPool{cpus: free, uses: j.cpus.uses, cores: coresOf(j.cpus.cores, free)}
	if cpus, err = sub.shareFor(req); err != nil {
		return nil, false, nil
	}
	j.alone.hold(cpus)
	return cpus, true, nil
}

// wanted is how many CPUs the request needs of the job.
func (j *jobResources) wanted(req *step.Request) int {
	if req.Binding.Whole {
		return len(j.cpus.cpus)
	}
	return req.NTasks * req.CPUsPerTask
}

// freeAlone counts the CPUs that no step has for itself.
func (j *jobResources) freeAlone() int { return j.alone.free() }

// takeMore adds to the CPUs of a step its memory and generic resources: all that job has where
// the request names none. On an error nothing is taken, and the CPUs are released; waits is as
// of take.
func (j *jobResources) takeMore(req *step.Request, job uint32, sh *share) (waits bool, err error) {
	sh.gres = j.all.gres
	if sh.mb, err = j.mem.forStep(req, len(sh.cpus), job, j.all.mb); err == nil && req.Gres != nil {
		sh.held, err = j.gres.take(req.Gres, req.Overcommit)
		sh.gres, waits = sh.held, mayWait(err)
	}
	if err != nil {
		j.release(share{cpus: sh.cpus, alone: sh.alone})
	}
	return waits, err
}

// hold counts the share of a step that runs already.
func (j *jobResources) hold(sh share) {
	j.cpus.hold(sh.cpus)
	if sh.alone {
		j.alone.hold(sh.cpus)
	}
	j.gres.hold(sh.held)
}

// release undoes the choice of a step's share, or hold.
func (j *jobResources) release(sh share) {
	j.cpus.release(sh.cpus)
	if sh.alone {
		j.alone.release(sh.cpus)
	}
	j.gres.release(sh.held)
}

// mayWait reports whether err refuses generic resources that another job or step has.
func mayWait(err error) bool {
	e, ok := errors.AsType[*gresError](err)
	return ok && !e.never()
}

// isGres reports whether err refuses generic resources.
func isGres(err error) bool {
	_, ok := errors.AsType[*gresError](err)
	return ok
}

// missing returns what of list is of the kind that err refuses; nil where it refuses another
// kind of resource.
func missing(err error, list []step.GresAlloc) (of []step.GresAlloc) {
	e, ok := errors.AsType[*gresError](err)
	for _, a := range list {
		if ok && a.Name == e.want.Name && (e.want.Type == "" || a.Type == e.want.Type) {
			of = append(of, a)
		}
	}
	return of
}
