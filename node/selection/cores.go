package selection

import (
	"fmt"
	"slices"

	"stepd/srunopt"
	"stepd/step"
)

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
// it says how cores are used.
func (p *cpuPool) takeFor(req *step.Request) ([]int, error) {
	u, ok := coreUseOf(req)
	if !ok || req.Overcommit || len(p.cores) == 0 || u.cpus > p.free() {
		return p.take(req.NTasks*req.CPUsPerTask, req.Overcommit)
	}
	free := slices.DeleteFunc(slices.Clone(p.cores), func(c Core) bool {
		return slices.ContainsFunc(c.CPUs, func(cpu int) bool { return p.uses[cpu] > 0 })
	})
	got, room := u.pick(free)
	if got == nil {
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
	u, ok := coreUseOf(req)
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
