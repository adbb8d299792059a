package selection

import (
	"fmt"
	"slices"

	"stepd/step"
)

// Unit is what a job has for itself of a node, whatever it has asked for of it.
type Unit string

const (
	UnitCPU    Unit = "cpu"    // CR_CPU: each CPU; the zero value as well
	UnitCore   Unit = "core"   // CR_Core: whole cores, with all of their threads
	UnitSocket Unit = "socket" // CR_Socket: whole sockets
	UnitNode   Unit = "node"   // select/linear: the node
)

// Policy is what SelectType and SelectTypeParameters say of CPUs. The zero value is CR_CPU.
// Units of cores and sockets need known cores: without them each CPU counts as one. A request with
// --overcommit shares CPUs under each policy.
type Policy struct {
	Unit Unit
	// OneTaskPerCore is CR_ONE_TASK_PER_CORE: a request that says nothing of cores has one task
	// on each.
	OneTaskPerCore bool
}

// SetPolicy is for a node of which no job has any yet.
func (r *Node) SetPolicy(p Policy) { r.cpus.Policy = p }

// coreUseOf reads a request; ok is false where neither it nor the policy says whole cores.
func (p Policy) coreUseOf(req *step.Request) (u coreUse, ok bool) {
	u, ok = coreUseOf(req)
	switch {
	case ok:
	case p.OneTaskPerCore:
		u.perCore, u.words, ok = req.CPUsPerTask, "CR_ONE_TASK_PER_CORE", true
	case p.Unit == UnitCore:
		u.words, ok = "CR_Core", true
	case p.Unit == UnitSocket:
		u.words, ok = "CR_Socket", true
	}
	return u, ok
}

// freeUnits are the cores of which no job has a CPU, nor one of their unit.
func (p *cpuPool) freeUnits() []Core {
	taken := make(map[int]bool) // sockets
	for _, c := range p.cores {
		if p.Unit == UnitSocket && p.used(c) > 0 {
			taken[c.Socket] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(p.cores), func(c Core) bool { return taken[c.Socket] || p.used(c) > 0 })
}

// whole adds to CPUs of whole cores the others of their sockets, where jobs have whole sockets.
func (p *cpuPool) whole(cpus []int) []int {
	if p.Unit != UnitSocket {
		return cpus
	}
	got := make(map[int]bool)
	for _, c := range p.cores {
		got[c.Socket] = got[c.Socket] || slices.ContainsFunc(c.CPUs, func(cpu int) bool { return slices.Contains(cpus, cpu) })
	}
	var all []int
	for _, c := range p.cores {
		if got[c.Socket] {
			all = append(all, c.CPUs...)
		}
	}
	slices.Sort(all)
	return all
}

// takeAll gives a job the whole node, where it is free and has room for what the request says of
// cores.
func (p *cpuPool) takeAll(u coreUse, cores bool) ([]int, error) {
	if free := p.free(); free < len(p.cpus) {
		return nil, fmt.Errorf("the step does not fit: it needs the whole node (SelectType=select/linear), and of its %s %d are free; --overcommit shares them with other jobs", CountCPUs(len(p.cpus)), free)
	}
	if cores && len(p.cores) > 0 {
		if got, room := u.pick(p.cores); got == nil {
			return nil, fmt.Errorf("%s: with %s there is room for %s on %d cores; --overcommit shares CPUs among tasks", Needs(u.cpus), u.words, CountCPUs(room), len(p.cores))
		}
	}
	all := slices.Clone(p.cpus)
	p.hold(all)
	return all, nil
}
