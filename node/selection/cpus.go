package selection

import (
	"cmp"
	"fmt"
	"slices"

	"stepd/srunopt"
	"stepd/step"
)

// cpuPool shares the node's CPUs among jobs. It is not safe for concurrent
// use: the caller's lock guards it.
type cpuPool struct {
	cpus []int
	uses []int // jobs that have each CPU, by its number
	// cores are the CPUs' cores in their order; nil where they are not known.
	cores []Core
	Policy
}

func newCPUPool(cpus []int, cores ...Core) *cpuPool {
	most := -1
	if len(cpus) > 0 {
		most = slices.Max(cpus)
	}
	return &cpuPool{cpus: slices.Clone(cpus), uses: make([]int, most+1), cores: cores}
}

func (p *cpuPool) clone() *cpuPool {
	c := *p
	c.uses = slices.Clone(p.uses)
	return &c
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

// take finds the lowest want free CPUs, the near ones first, or an error that says how many are
// free. With overcommit it never fails: CPUs are shared, the least used first, and no CPU is in
// the list twice. Nothing is counted: hold does that.
func (p *cpuPool) take(want int, overcommit bool, near map[int]bool) ([]int, error) {
	if !overcommit {
		if want > len(p.cpus) {
			return nil, fmt.Errorf("%s on this node, which has %s; --overcommit shares CPUs among tasks", Needs(want), CountCPUs(len(p.cpus)))
		}
		if free := p.free(); want > free {
			return nil, fmt.Errorf("%s on this node: of its %s %d are free; --overcommit shares them with other steps", Needs(want), CountCPUs(len(p.cpus)), free)
		}
	}
	return p.pick(want, near), nil
}

// pick is the lowest want of the least used CPUs, or all. Nothing else is kept for them:
// a job has them as long as it runs.
func (p *cpuPool) pick(want int, near map[int]bool) []int {
	order := slices.Clone(p.cpus)
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(p.uses[a]-p.uses[b], rank(near, a)-rank(near, b))
	})
	got := order[:min(want, len(order))]
	slices.Sort(got)
	return got
}

// hold counts one more user of each CPU, free ones or not: after a restart noded takes back what its
// jobs have. CPUs that the node no longer has are left out.
func (p *cpuPool) hold(cpus []int) {
	for _, c := range cpus {
		if c < len(p.uses) {
			p.uses[c]++
		}
	}
}

// release undoes hold.
func (p *cpuPool) release(cpus []int) {
	for _, c := range cpus {
		if c < len(p.uses) && p.uses[c] > 0 {
			p.uses[c]--
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

// shareFor finds a step's CPUs of a job's, those that the job's other steps use least: all of
// them if it asks for the whole job.
func (p *cpuPool) shareFor(req *step.Request) ([]int, error) {
	if req.Binding.Whole {
		return p.take(len(p.cpus), true, nil)
	}
	u, ok := p.coreUseOf(req)
	if ok && !req.Overcommit && len(p.cores) > 0 {
		least := slices.Clone(p.cores)
		slices.SortStableFunc(least, func(a, b Core) int { return p.used(a) - p.used(b) })
		if got, _ := u.pick(least); got != nil {
			return got, nil
		}
	}
	return p.take(req.NTasks*req.CPUsPerTask, true, nil)
}

// counted is for how many of its CPUs a job gets memory by CPU.
func (p *cpuPool) counted(req *step.Request, cpus []int) int {
	u, ok := coreUseOf(req)
	switch {
	case cmp.Or(p.Unit, UnitCPU) == UnitCPU && len(cpus) < len(p.cpus):
		return min(len(cpus), u.cpus)
	case !ok || u.threads == 0:
		return len(cpus)
	}
	n := 0
	for _, c := range coresOf(p.cores, cpus) {
		n += min(u.threads, len(c.CPUs))
	}
	return n
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
	has := setOf(cpus)
	for _, c := range cores {
		var own []int
		for _, cpu := range c.CPUs {
			if has[cpu] {
				own = append(own, cpu)
			}
		}
		if len(own) > 0 {
			of = append(of, Core{c.Socket, own})
		}
	}
	return of
}

func setOf(cpus []int) map[int]bool {
	set := make(map[int]bool, len(cpus))
	for _, cpu := range cpus {
		set[cpu] = true
	}
	return set
}
