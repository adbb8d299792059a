package selection

import (
	"fmt"
	"slices"
	"time"

	"stepd/step"
)

// ConsTres is the type of the plugin that gives a job CPUs, cores or sockets.
const ConsTres = "select/cons_tres"

// consTres is select/cons_tres: a job has CPUs, whole cores or whole sockets, as Policy says.
type consTres struct{ *node }

func (c *consTres) Test(req *step.Request, mode Mode) (Share, error) {
	return c.testAs(req, mode, units)
}

func (c *consTres) WillRun(req *step.Request, ends func(*Job) *time.Time) Wait {
	return c.willRun(req, ends, units)
}

func (c *consTres) Info() Info { return c.info(ConsTres) }

// Unit is what a job has for itself of a node, whatever it has asked for of it.
type Unit string

const (
	UnitCPU    Unit = "cpu"    // CR_CPU: each CPU; the zero value as well
	UnitCore   Unit = "core"   // CR_Core: whole cores, with all of their threads
	UnitSocket Unit = "socket" // CR_Socket: whole sockets
	UnitNode   Unit = "node"   // select/linear: the node
)

// Policy is what SelectTypeParameters says of CPUs. The zero value is CR_CPU. Units of cores and
// sockets need known cores. A request with --overcommit shares CPUs under each policy.
type Policy struct {
	Unit Unit
	// OneTaskPerCore is CR_ONE_TASK_PER_CORE: a request that says nothing of cores has one task
	// on each.
	OneTaskPerCore bool
	// WholeCores: no two jobs have CPUs of one core under CR_CPU either, as in Slurm where the NodeName
	// line has ThreadsPerCore. Memory by CPU then counts the CPUs that a job asks for.
	WholeCores bool
}

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
	case p.WholeCores:
		u.words, ok = "CR_CPU", true
	}
	return u, ok
}

// units finds the CPUs that req asks for: whole free cores, where it says how cores are used, and
// whole units of the policy.
func units(p *cpuPool, req *step.Request, near map[int]bool) ([]int, error) {
	u, ok := p.coreUseOf(req)
	if req.Overcommit || !ok || len(p.cores) == 0 || u.cpus > p.free() {
		return p.take(u.cpus, req.Overcommit, near)
	}
	free := p.freeUnits()
	if len(near) > 0 {
		slices.SortStableFunc(free, func(a, b Core) int { return rank(near, a.CPUs[0]) - rank(near, b.CPUs[0]) })
	}
	got, room := u.pick(free)
	if got == nil {
		return nil, fmt.Errorf("%s: with %s there is room for %s on %d free cores of %d; --overcommit shares CPUs among tasks", Needs(u.cpus), u.words, CountCPUs(room), len(free), len(p.cores))
	}
	return p.whole(got), nil
}

// rank puts what is near before what is not.
func rank(near map[int]bool, cpu int) int {
	if near[cpu] {
		return 0
	}
	return 1
}

// freeUnits are the cores of which no job has a CPU, nor one of their unit.
func (p *cpuPool) freeUnits() []Core {
	taken := make(map[int]bool) // sockets
	for _, c := range p.cores {
		if p.Unit == UnitSocket && p.used(c) > 0 {
			taken[c.Socket] = true
		}
	}
	free := make([]Core, 0, len(p.cores))
	for _, c := range p.cores {
		if !taken[c.Socket] && p.used(c) == 0 {
			free = append(free, c)
		}
	}
	return free
}

// whole adds to CPUs of whole cores the others of their sockets, where jobs have whole sockets.
func (p *cpuPool) whole(cpus []int) []int {
	if p.Unit != UnitSocket {
		return cpus
	}
	has := setOf(cpus)
	got := make(map[int]bool)
	for _, c := range p.cores {
		got[c.Socket] = got[c.Socket] || slices.ContainsFunc(c.CPUs, func(cpu int) bool { return has[cpu] })
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
