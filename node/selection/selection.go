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
	cpus := *r.cpus
	cpus.uses = maps.Clone(cpus.uses)
	return &Node{&cpus, r.mem, &gresPool{items: slices.Clone(r.gres.items)}}
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
	cpus := newCPUPool(sh.CPUs, coresOf(r.cpus.cores, sh.CPUs)...)
	cpus.Policy = r.cpus.Policy
	return &Job{&r.mem, cpus, newCPUPool(sh.CPUs), jobGresPool(sh.Gres), sh}
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
	sub := &cpuPool{cpus: free, uses: j.cpus.uses, cores: coresOf(j.cpus.cores, free), Policy: j.cpus.Policy}
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

// cpuPool shares the node's CPUs among jobs. It is not safe for concurrent
// use: the caller's lock guards it.
type cpuPool struct {
	cpus []int
	uses map[int]int // CPU -> jobs that have it
	// cores are the CPUs' cores in their order; nil where they are not known.
	cores []Core
	Policy
}

func newCPUPool(cpus []int, cores ...Core) *cpuPool {
	return &cpuPool{cpus: slices.Clone(cpus), uses: make(map[int]int), cores: cores}
}

// free counts the CPUs that no job has.
func (p *cpuPool) free() int {
	n := 0
	for _, c := range p.cpus {
		if p.uses[c] == 0 {
			n++
		}
	}
	return n
}

// take gives the lowest want free CPUs, or an error that says how many there
// are. With overcommit it never fails: CPUs are shared, the least used first,
// and no CPU is given twice to one taker.
func (p *cpuPool) take(want int, overcommit bool) ([]int, error) {
	if !overcommit {
		if want > len(p.cpus) {
			return nil, fmt.Errorf("%s on this node, which has %s; --overcommit shares CPUs among tasks", Needs(want), CountCPUs(len(p.cpus)))
		}
		if free := p.free(); want > free {
			return nil, fmt.Errorf("%s on this node: of its %s %d are free; --overcommit shares them with other steps", Needs(want), CountCPUs(len(p.cpus)), free)
		}
	}
	got := p.pick(want)
	p.hold(got)
	return got, nil
}

// pick is the lowest want of the least used CPUs, or all. Nothing else is kept for them:
// a job has them as long as it runs.
func (p *cpuPool) pick(want int) []int {
	got := make([]int, 0, min(want, len(p.cpus)))
	for _, c := range p.cpus {
		if len(got) < cap(got) && p.uses[c] == 0 {
			got = append(got, c)
		}
	}
	if len(got) < cap(got) {
		order := slices.Clone(p.cpus)
		slices.SortStableFunc(order, func(a, b int) int { return p.uses[a] - p.uses[b] })
		got = append(got[:0], order[:cap(got)]...)
	}
	slices.Sort(got)
	return got
}

// hold counts one more user of each CPU, free ones or not: after a restart
// noded takes back what its steps have. CPUs that the node no longer has are
// left out of the count by free.
func (p *cpuPool) hold(cpus []int) {
	for _, c := range cpus {
		p.uses[c]++
	}
}

// release undoes take or hold.
func (p *cpuPool) release(cpus []int) {
	for _, c := range cpus {
		if p.uses[c]--; p.uses[c] <= 0 {
			delete(p.uses, c)
		}
	}
}

func Needs(n int) string { return "the step does not fit: it needs " + CountCPUs(n) }

func CountCPUs(n int) string {
	if n == 1 {
		return "1 CPU"
	}
	return fmt.Sprintf("%d CPUs", n)
}

// Core is a core of the node, for requests that say how cores are used.
type Core struct {
	Socket int
	CPUs   []int // the node's numbers, ascending
}

// coreUse is what a request says of cores.
type coreUse struct {
	cpus      int // that the tasks need
	threads   int // at most so many of each core; 0 is all
	perCore   int // CPUs of tasks, at most, on each core; 0 is no limit
	perSocket int // and on each socket
	words     string
}

// coreUseOf reads a request; ok is false for one that says nothing of cores.
func coreUseOf(req *step.Request) (u coreUse, ok bool) {
	b := &req.Binding
	u.cpus = req.NTasks * req.CPUsPerTask
	switch {
	case b.ThreadsPerCore > 0:
		u.threads, u.words = b.ThreadsPerCore, fmt.Sprintf("--threads-per-core=%d", b.ThreadsPerCore)
	case b.Hint == srunopt.HintNoMultithread:
		u.threads, u.words = 1, "--hint=nomultithread"
	}
	if b.NTasksPerCore > 0 {
		u.perCore, u.words = b.NTasksPerCore*req.CPUsPerTask, fmt.Sprintf("--ntasks-per-core=%d", b.NTasksPerCore)
	}
	if b.NTasksPerSocket > 0 {
		u.perSocket, u.words = b.NTasksPerSocket*req.CPUsPerTask, fmt.Sprintf("--ntasks-per-socket=%d", b.NTasksPerSocket)
	}
	return u, u.words != ""
}

// pick chooses cores in their order until the tasks have room, and returns all of
// their CPUs, since no other job is to have the threads that are left; or how many
// CPUs of tasks there is room for, where that is not enough.
func (u coreUse) pick(cores []Core) (cpus []int, room int) {
	socket := make(map[int]int)
	for _, c := range cores {
		add := len(c.CPUs)
		if u.threads > 0 {
			add = min(add, u.threads)
		}
		if u.perCore > 0 {
			add = min(add, u.perCore)
		}
		if u.perSocket > 0 {
			add = min(add, u.perSocket-socket[c.Socket])
		}
		if add <= 0 {
			continue
		}
		socket[c.Socket] += add
		cpus = append(cpus, c.CPUs...)
		if room += add; room >= u.cpus {
			slices.Sort(cpus)
			return cpus, room
		}
	}
	return nil, room
}

// takeFor gives a job the CPUs that req asks for, as take: whole free cores, where
// it says how cores are used, and whole units of the policy.
func (p *cpuPool) takeFor(req *step.Request) ([]int, error) {
	u, ok := p.coreUseOf(req)
	switch {
	case req.Overcommit, u.cpus > len(p.cpus):
		return p.take(u.cpus, req.Overcommit)
	case p.Unit == UnitNode:
		return p.takeAll(u, ok)
	case !ok, len(p.cores) == 0, u.cpus > p.free():
		return p.take(u.cpus, false)
	}
	free := p.freeUnits()
	got, room := u.pick(free)
	if got = p.whole(got); got == nil {
		return nil, fmt.Errorf("%s: with %s there is room for %s on %d free cores of %d; --overcommit shares CPUs among tasks", Needs(u.cpus), u.words, CountCPUs(room), len(free), len(p.cores))
	}
	p.hold(got)
	return got, nil
}

// shareFor gives a step its CPUs of a job's, those that the job's other steps use
// least: all of them if it asks for the whole job.
func (p *cpuPool) shareFor(req *step.Request) ([]int, error) {
	if req.Binding.Whole {
		return p.take(len(p.cpus), true)
	}
	u, ok := p.coreUseOf(req)
	if ok && !req.Overcommit && len(p.cores) > 0 {
		least := slices.Clone(p.cores)
		slices.SortStableFunc(least, func(a, b Core) int { return p.used(a) - p.used(b) })
		if got, _ := u.pick(least); got != nil {
			p.hold(got)
			return got, nil
		}
	}
	return p.take(req.NTasks*req.CPUsPerTask, true)
}

// used is how much the core is used.
func (p *cpuPool) used(c Core) (n int) {
	for _, cpu := range c.CPUs {
		n += p.uses[cpu]
	}
	return n
}

// coresOf are the cores as far as cpus are of them.
func coresOf(cores []Core, cpus []int) (of []Core) {
	for _, c := range cores {
		own := slices.DeleteFunc(slices.Clone(c.CPUs), func(cpu int) bool { return !slices.Contains(cpus, cpu) })
		if len(own) > 0 {
			of = append(of, Core{c.Socket, own})
		}
	}
	return of
}
