// Package selection chooses what a job gets of a node, and a step of its job: CPUs, whole cores
// where the request says how cores are used, memory, and generic resources (gres).
//
// It is arithmetic on plain data: it takes no lock, knows no process and decides nothing about
// users, lines or time. Its caller, the registry of package node, guards every value with one
// lock.
//
// Begin with Node.Take, which chooses a job's Share, and Job.TakeCPUs, which chooses a step's.
package selection

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"stepd/api"
	"stepd/srunopt"
	"stepd/step"
)

// Share is what a job has of its node, or a step of its job. The zero value is nothing.
type Share struct {
	CPUs []int
	MB   uint64 // memory; 0 is none of its own
	Gres []step.GresAlloc
	// Held are the generic resources that no other step of the job gets. Alone: no other step
	// gets the CPUs.
	Held  []step.GresAlloc
	Alone bool
}

// Node are the CPUs, the memory and the generic resources of a node, and which of them
// its jobs have. It is not safe for concurrent use.
type Node struct {
	cpus *cpuPool
	mem  memPool
	gres *gresPool
}

// New returns the resources of a node of which no job has any. cores are the cores of
// the CPUs; nil where they are not known.
func New(cpus []int, mem Memory, gres []Gres, cores ...Core) *Node {
	return &Node{newCPUPool(cpus, cores...), memPool{Memory: mem}, newGresPool(gres)}
}

// Clone returns a copy, on which a choice can be tried.
func (r *Node) Clone() *Node {
	cpus := &cpuPool{cpus: r.cpus.cpus, uses: maps.Clone(r.cpus.uses), cores: r.cpus.cores}
	return &Node{cpus, r.mem, &gresPool{items: slices.Clone(r.gres.items)}}
}

// Take chooses a job's share. waits reports that the release of another job's share may change
// the answer.
func (r *Node) Take(req *step.Request) (sh Share, waits bool, err error) {
	if sh.CPUs, err = r.cpus.takeFor(req); err != nil {
		return Share{}, req.NTasks*req.CPUsPerTask <= len(r.cpus.cpus), err
	}
	if sh.MB, err = r.mem.forJob(req, len(sh.CPUs)); err != nil {
		r.cpus.release(sh.CPUs)
		return Share{}, false, err
	}
	if err = r.mem.take(sh.MB); err != nil {
		r.cpus.release(sh.CPUs)
		return Share{}, true, err
	}
	if sh.Gres, err = r.gres.take(req.Gres, false); err != nil {
		r.cpus.release(sh.CPUs)
		r.mem.release(sh.MB)
		return Share{}, mayWait(err), fmt.Errorf("the step does not fit: %w", err)
	}
	return sh, false, nil
}

// NeverFits returns why the request would not fit on the empty node either, nil where it would.
func (r *Node) NeverFits(req *step.Request) error {
	empty := r.Clone()
	empty.cpus.uses, empty.mem.used = make(map[int]int), 0
	for i := range empty.gres.items {
		empty.gres.items[i].used = 0
	}
	_, _, err := empty.Take(req)
	return err
}

// Hold counts the share of a job that runs already: a restarted noded takes it back.
func (r *Node) Hold(sh Share) {
	r.cpus.hold(sh.CPUs)
	r.mem.hold(sh.MB)
	r.gres.hold(sh.Gres)
}

// Release undoes Take or Hold.
func (r *Node) Release(sh Share) {
	r.cpus.release(sh.CPUs)
	r.mem.release(sh.MB)
	r.gres.release(sh.Gres)
}

// FreeCPUs counts the CPUs that no job has.
func (r *Node) FreeCPUs() int { return r.cpus.free() }

// UsedMB is the memory that jobs have, in MB.
func (r *Node) UsedMB() uint64 { return r.mem.used }

// GresDocs are the generic resources in the node document.
func (r *Node) GresDocs() []api.NodeGres { return r.gres.doc() }

// Job are the resources of a job, and which of them its steps have.
type Job struct {
	// mem is the node's: its size bounds what a step may ask for.
	mem  *memPool
	cpus *cpuPool
	// alone counts the CPUs that one step has for itself.
	alone *cpuPool
	gres  *gresPool
	all   Share
}

// Job returns the resources of a job of this share, of which no step has any.
func (r *Node) Job(sh Share) *Job {
	return &Job{&r.mem, newCPUPool(sh.CPUs, coresOf(r.cpus.cores, sh.CPUs)...), newCPUPool(sh.CPUs), jobGresPool(sh.Gres), sh}
}

// TakeCPUs chooses a step's CPUs: the CPUs that the other steps use least, or, with alone,
// CPUs that no other step has for itself. ok is false where too few of the latter are free.
func (j *Job) TakeCPUs(req *step.Request, alone bool) (cpus []int, ok bool, err error) {
	if !alone {
		cpus, err = j.cpus.shareFor(req)
		return cpus, err == nil, err
	}
	free := slices.DeleteFunc(slices.Clone(j.cpus.cpus), func(c int) bool { return j.alone.uses[c] > 0 })
	if len(free) < j.Wanted(req) {
		return nil, false, nil
	}
	sub := &cpuPool{cpus: free, uses: j.cpus.uses, cores: coresOf(j.cpus.cores, free)}
	if cpus, err = sub.shareFor(req); err != nil {
		return nil, false, nil
	}
	j.alone.hold(cpus)
	return cpus, true, nil
}

// Wanted is how many CPUs the request needs of the job.
func (j *Job) Wanted(req *step.Request) int {
	if req.Binding.Whole {
		return len(j.cpus.cpus)
	}
	return req.NTasks * req.CPUsPerTask
}

// FreeAlone counts the CPUs that no step has for itself.
func (j *Job) FreeAlone() int { return j.alone.free() }

// TakeMore adds to the CPUs of a step its memory and generic resources: all that job has where
// the request names none. On an error nothing is taken, and the CPUs are released; waits is as
// of Node.Take.
func (j *Job) TakeMore(req *step.Request, job uint32, sh *Share) (waits bool, err error) {
	sh.Gres = j.all.Gres
	if sh.MB, err = j.mem.forStep(req, len(sh.CPUs), job, j.all.MB); err == nil && req.Gres != nil {
		sh.Held, err = j.gres.take(req.Gres, req.Overcommit)
		sh.Gres, waits = sh.Held, mayWait(err)
	}
	if err != nil {
		j.Release(Share{CPUs: sh.CPUs, Alone: sh.Alone})
	}
	return waits, err
}

// Hold counts the share of a step that runs already.
func (j *Job) Hold(sh Share) {
	j.cpus.hold(sh.CPUs)
	if sh.Alone {
		j.alone.hold(sh.CPUs)
	}
	j.gres.hold(sh.Held)
}

// Release undoes the choice of a step's share, or Hold.
func (j *Job) Release(sh Share) {
	j.cpus.release(sh.CPUs)
	if sh.Alone {
		j.alone.release(sh.CPUs)
	}
	j.gres.release(sh.Held)
}

// mayWait reports whether err refuses generic resources that another job or step has.
func mayWait(err error) bool {
	e, ok := errors.AsType[*gresError](err)
	return ok && !e.never()
}

// IsGres reports whether err refuses generic resources.
func IsGres(err error) bool {
	_, ok := errors.AsType[*gresError](err)
	return ok
}

// Missing returns what of list is of the kind that err refuses; nil where it refuses another
// kind of resource.
func Missing(err error, list []step.GresAlloc) (of []step.GresAlloc) {
	e, ok := errors.AsType[*gresError](err)
	for _, a := range list {
		if ok && a.Name == e.want.Name && (e.want.Type == "" || a.Type == e.want.Type) {
			of = append(of, a)
		}
	}
	return of
}

// Memory is what the site says of memory as a resource, in MB.
type Memory struct {
	// MB is what steps may have: RealMemory without MemSpecLimit.
	MB uint64
	// Consumable: what one job has another cannot have (CR_*_Memory).
	Consumable bool
	// DefPerCPU and DefPerNode are given to a job that asks for none, where memory
	// is consumable; at most one is not 0. MaxPerCPU and MaxPerNode bound what
	// may be asked for; 0 is no bound.
	DefPerCPU, DefPerNode, MaxPerCPU, MaxPerNode uint64
}

// memPool counts the memory that jobs have. The caller's lock guards it.
type memPool struct {
	Memory
	used uint64
}

// forJob is what a job with ncpus gets: 0 is no share of the memory, and no
// limit but cgroup.conf's MaxRAMPercent. Slurm would give the whole node to a job
// that asks for nothing and has no default; a node that runs without a
// controller would then take one job at a time.
func (p *memPool) forJob(req *step.Request, ncpus int) (mb uint64, err error) {
	n := uint64(ncpus)
	switch {
	case req.Mem != nil && *req.Mem == 0, req.MemPerCPU != nil && *req.MemPerCPU == 0:
		mb = p.MB
	case req.Mem != nil:
		mb = *req.Mem
	case req.MemPerCPU != nil:
		mb = *req.MemPerCPU * n
	case p.Consumable && p.DefPerCPU > 0:
		return min(p.DefPerCPU*n, p.MB), nil
	case p.Consumable:
		return min(p.DefPerNode, p.MB), nil
	}
	switch {
	case mb > p.MB:
		return 0, fmt.Errorf("the step does not fit: it needs %s of memory on this node, which has %s", srunopt.FormatMB(mb), srunopt.FormatMB(p.MB))
	case p.MaxPerNode > 0 && mb > p.MaxPerNode:
		return 0, fmt.Errorf("it asks for %s of memory, and %s is the limit (MaxMemPerNode)", srunopt.FormatMB(mb), srunopt.FormatMB(p.MaxPerNode))
	case p.MaxPerCPU > 0 && mb > p.MaxPerCPU*n:
		return 0, fmt.Errorf("it asks for %s of memory with %s, and %s a CPU is the limit (MaxMemPerCPU): ask for more CPUs", srunopt.FormatMB(mb), CountCPUs(ncpus), srunopt.FormatMB(p.MaxPerCPU))
	}
	return mb, nil
}

// forStep is what a step of a job that has jobMB gets: all of it where it asks for
// nothing. Steps of one job share its memory.
func (p *memPool) forStep(req *step.Request, ncpus int, job uint32, jobMB uint64) (mb uint64, err error) {
	switch {
	case req.Mem != nil && *req.Mem > 0:
		mb = *req.Mem
	case req.MemPerCPU != nil && *req.MemPerCPU > 0:
		mb = *req.MemPerCPU * uint64(ncpus)
	default:
		return jobMB, nil
	}
	switch {
	case jobMB > 0 && mb > jobMB:
		return 0, fmt.Errorf("the step does not fit: it needs %s of memory in job %d, which has %s", srunopt.FormatMB(mb), job, srunopt.FormatMB(jobMB))
	case mb > p.MB:
		return 0, fmt.Errorf("the step does not fit: it needs %s of memory on this node, which has %s", srunopt.FormatMB(mb), srunopt.FormatMB(p.MB))
	}
	return mb, nil
}

// take takes a job's memory.
func (p *memPool) take(mb uint64) error {
	if p.Consumable && p.used+mb > p.MB && mb > 0 {
		return fmt.Errorf("the step does not fit: it needs %s of memory on this node: of its %s %s are free", srunopt.FormatMB(mb), srunopt.FormatMB(p.MB), srunopt.FormatMB(p.MB-min(p.used, p.MB)))
	}
	p.used += mb
	return nil
}

// hold counts the memory of a job that runs already.
func (p *memPool) hold(mb uint64) { p.used += mb }

func (p *memPool) release(mb uint64) { p.used -= min(mb, p.used) }
