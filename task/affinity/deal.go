package affinity

import (
	"cmp"
	"fmt"
	"slices"

	"stepd/srunopt"
	"stepd/step"
)

// deal binds the tasks to units of kind: sockets, cores, threads, ldoms or boards.
// Each task gets as many CPUs as it asks for, one after the other as the
// distribution says, and is bound to the units in which they lie.
func (p *Plan) deal(kind step.CPUBindKind, threads int) error {
	t := p.in.Topology
	usable := limitThreads(t.PUs, threads)
	if want := p.in.NTasks * p.in.CPUsPerTask; want > len(usable) {
		if threads > 0 && !p.in.Overcommit && len(usable) < len(t.PUs) {
			return fmt.Errorf("cannot place %d tasks of %s on %s of each core (%d in all, on the step's CPUs %s); --overcommit shares them",
				p.in.NTasks, number(p.in.CPUsPerTask, "CPU", "CPUs"), number(threads, "thread", "threads"), len(usable), t.CPUs())
		}
		p.share(setOf(usable)) // as measured: no task gets less than another
		return nil
	}
	d := newDealer(usable, kind, p.in.Binding.Distribution, p.in.CPUsPerTask)
	unit := units(t.PUs, usable, kind)
	p.CPUs = make([]CPUSet, p.in.NTasks)
	for id := range p.CPUs {
		for _, pu := range d.task() {
			p.CPUs[id] = p.CPUs[id].or(unit[pu.CPU])
		}
	}
	return nil
}

// limitThreads keeps the first threads of each core; 0 keeps all.
func limitThreads(pus []PU, threads int) []PU {
	if threads == 0 {
		return pus
	}
	used := make(map[int]int)
	return slices.DeleteFunc(slices.Clone(pus), func(p PU) bool {
		used[p.Core]++
		return used[p.Core] > threads
	})
}

func setOf(pus []PU) CPUSet {
	var s CPUSet
	for _, p := range pus {
		s.add(p.CPU)
	}
	return s
}

// units maps each usable CPU to what a task is bound to that got it: of all of the
// step's CPUs, since a binding to cores means whole ones.
func units(all, usable []PU, kind step.CPUBindKind) map[int]CPUSet {
	of := unitOf(kind)
	sets := make(map[int]CPUSet)
	for _, p := range all {
		s := sets[of(p)]
		s.add(p.CPU)
		sets[of(p)] = s
	}
	out := make(map[int]CPUSet, len(usable))
	for _, p := range usable {
		out[p.CPU] = sets[of(p)]
	}
	return out
}

func unitOf(kind step.CPUBindKind) func(PU) int {
	switch kind {
	case srunopt.CPUBindSockets:
		return socketOf
	case srunopt.CPUBindCores:
		return coreOf
	case srunopt.CPUBindLdoms:
		return ldomOf
	case srunopt.CPUBindBoards:
		return boardOf
	}
	return cpuOf
}

// dealer hands CPUs out, task by task.
type dealer struct {
	domains []*domain
	next    int // the domain that is next
	// each takes every CPU from the next domain, and not all of a task from one.
	each bool
	// whole takes whole cores: no two tasks share one while there are free ones.
	whole bool
	need  int // CPUs of a task
	free  int
}

// domain is a set of CPUs that tasks take turns at: a socket, as a rule.
type domain struct {
	pus  []PU // in the order in which they are taken
	used []bool
	free int
	// turn makes each task begin at the core behind the last task's: core is
	// that core's place in pus.
	turn bool
	core int
}

// newDealer sets the distribution up. Its second level turns among sockets, or
// among the domains themselves where the tasks are bound to those. Its third level
// is for tasks that are bound to threads, and counts only where it is written: the
// default is to fill the cores.
func newDealer(pus []PU, kind step.CPUBindKind, dist step.Distribution, cpusPerTask int) *dealer {
	method := cmp.Or(dist.Sockets, srunopt.DistCyclic)
	if dist.Nodes == srunopt.DistPlane {
		method = srunopt.DistBlock
	}
	d := &dealer{need: cpusPerTask, whole: kind == srunopt.CPUBindCores, free: len(pus)}
	if method == srunopt.DistFCyclic && cpusPerTask == 1 {
		method = srunopt.DistCyclic // one CPU is of one socket
	}
	if method == srunopt.DistFCyclic {
		d.each = true
		if d.whole {
			// A task that needs part of a core needs the core.
			most := mostThreads(pus)
			d.need = min((d.need+most-1)/most*most, len(pus))
			d.whole = false
		}
	}
	if kind != srunopt.CPUBindThreads {
		dist.Cores = ""
	}
	of := socketOf
	if kind == srunopt.CPUBindLdoms || kind == srunopt.CPUBindBoards {
		of = unitOf(kind)
	}
	at := make(map[int]*domain)
	for _, p := range pus {
		key := of(p)
		if method == srunopt.DistBlock {
			key = 0
		}
		if at[key] == nil {
			at[key] = &domain{turn: dist.Cores == srunopt.DistCyclic}
			d.domains = append(d.domains, at[key])
		}
		at[key].pus = append(at[key].pus, p)
	}
	for _, dom := range d.domains {
		if dist.Cores == srunopt.DistFCyclic {
			dom.threadsFirst()
		}
		dom.used = make([]bool, len(dom.pus))
		dom.free = len(dom.pus)
	}
	return d
}

func mostThreads(pus []PU) int {
	n, most := make(map[int]int), 0
	for _, p := range pus {
		n[p.Core]++
		most = max(most, n[p.Core])
	}
	return most
}

// threadsFirst orders the CPUs so that every core's first thread comes before any
// core's second one.
func (d *domain) threadsFirst() {
	n, thread := make(map[int]int), make(map[int]int)
	for _, p := range d.pus {
		thread[p.CPU] = n[p.Core]
		n[p.Core]++
	}
	slices.SortStableFunc(d.pus, func(a, b PU) int { return cmp.Compare(thread[a.CPU], thread[b.CPU]) })
}

// task takes the CPUs of the next task. Where there are none left, as cores were
// taken whole, it begins again; it never takes one twice.
func (d *dealer) task() (got []PU) {
	for len(got) < d.need {
		if d.free == 0 {
			d.again(got)
		}
		if d.each {
			got = d.from(d.nextFree(1), 1, got)
			continue
		}
		i := d.nextFree(d.need - len(got))
		got = d.from(i, d.need-len(got), got)
	}
	return got
}

// nextFree is the next domain that has want CPUs free, or, if none has, any.
func (d *dealer) nextFree(want int) int {
	for _, least := range []int{want, 1} {
		for i := range d.domains {
			if at := (d.next + i) % len(d.domains); d.domains[at].free >= least {
				return at
			}
		}
	}
	return d.next // not reached: free was not 0
}

// from takes up to want CPUs of a domain, or a core more where cores are taken
// whole, and gives the turn to the next.
func (d *dealer) from(at, want int, got []PU) []PU {
	dom := d.domains[at]
	d.next = (at + 1) % len(d.domains)
	for i := range dom.order() {
		if want <= 0 {
			break
		}
		if dom.used[i] {
			continue
		}
		for _, j := range dom.with(i, d.whole) {
			dom.used[j] = true
			dom.free--
			d.free--
			want--
			got = append(got, dom.pus[j])
		}
	}
	return got
}

// with is place i, or all free places of its core.
func (d *domain) with(i int, whole bool) []int {
	if !whole {
		return []int{i}
	}
	var out []int
	for j, p := range d.pus {
		if p.Core == d.pus[i].Core && !d.used[j] {
			out = append(out, j)
		}
	}
	return out
}

// order gives the places of the domain in the order of a new task.
func (d *domain) order() func(func(int) bool) {
	start := 0
	if d.turn {
		start = d.core
		for n := 0; n < len(d.pus) && d.used[start]; n++ {
			start = (start + 1) % len(d.pus)
		}
		d.core = start
		for n := 0; n < len(d.pus) && d.pus[d.core].Core == d.pus[start].Core; n++ {
			d.core = (d.core + 1) % len(d.pus)
		}
	}
	return func(yield func(int) bool) {
		for n := range d.pus {
			if !yield((start + n) % len(d.pus)) {
				return
			}
		}
	}
}

// again makes all CPUs free but the ones that the task has already.
func (d *dealer) again(got []PU) {
	d.free = 0
	for _, dom := range d.domains {
		dom.free = 0
		for i, p := range dom.pus {
			dom.used[i] = slices.Contains(got, p)
			if !dom.used[i] {
				dom.free++
			}
		}
		d.free += dom.free
	}
}
