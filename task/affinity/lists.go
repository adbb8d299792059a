package affinity

import (
	"fmt"

	"stepd/srunopt"
	"stepd/step"
)

// byRank binds the n-th task of the node to the n-th of the step's CPUs, by their numbers.
func (p *Plan) byRank(cpus CPUSet) error {
	all := cpus.Numbers()
	sets := make([]CPUSet, len(all))
	for i, c := range all {
		sets[i] = NewCPUSet(c)
	}
	p.cycle(sets)
	return nil
}

// cycle gives the tasks the sets in turn: a list that is too short begins again,
// and of one that is too long the end is not used.
func (p *Plan) cycle(sets []CPUSet) {
	p.CPUs = make([]CPUSet, p.in.NTasks)
	for id := range p.CPUs {
		p.CPUs[id] = sets[id%len(sets)]
	}
}

// byList binds the tasks as the user's list says, by CPU numbers or ldoms. What the
// step has not is an error and not cut off: a task that silently runs elsewhere
// than its user has written is worse than none (so does Slurm).
func (p *Plan) byList() error {
	bind := p.in.Binding.CPU
	var sets []CPUSet
	switch bind.Kind {
	case srunopt.CPUBindRankLdom:
		for i := range p.ldoms() {
			sets = append(sets, p.ldomCPUs(i))
		}
		p.cycle(sets)
		return nil
	case srunopt.CPUBindMap, srunopt.CPUBindMask, srunopt.CPUBindMapLdom, srunopt.CPUBindMaskLdom:
	}
	items, err := srunopt.CPUItems(bind)
	if err != nil {
		return fmt.Errorf("cannot bind tasks (--cpu-bind=%s): %w", bind.Kind, err)
	}
	for _, item := range items {
		if len(sets) >= p.in.NTasks {
			break
		}
		set, err := p.listed(bind.Kind, item)
		if err != nil {
			return fmt.Errorf("cannot bind task %d (--cpu-bind=%s): %w", len(sets), bind.Kind, err)
		}
		for range min(item.Times, p.in.NTasks-len(sets)) {
			sets = append(sets, set)
		}
	}
	p.cycle(sets)
	return nil
}

// listed is what one entry of the list stands for.
func (p *Plan) listed(kind step.CPUBindKind, item srunopt.BindItem) (CPUSet, error) {
	have := p.in.Topology.CPUs()
	if kind == srunopt.CPUBindMapLdom || kind == srunopt.CPUBindMaskLdom {
		var out CPUSet
		for _, n := range item.Numbers {
			i := p.ldom(n)
			if i < 0 {
				return nil, fmt.Errorf("the step has no CPU of ldom %d: its CPUs %s are of ldoms %s", n, have, NewCPUSet(p.ldoms()...))
			}
			out = out.or(p.ldomCPUs(i))
		}
		if len(item.Numbers) == 0 {
			return have, nil
		}
		return out, nil
	}
	want := NewCPUSet(item.Numbers...)
	if want.Len() == 0 {
		return have, nil // a mask of 0 is no choice, as measured
	}
	if off := want.and(p.in.Topology.Offline); off.Len() > 0 {
		return nil, fmt.Errorf("%s offline", plural(off, "CPU", "is", "are"))
	}
	if out := want.without(have); out.Len() > 0 {
		return nil, fmt.Errorf("%s not the step's: it has CPUs %s", plural(out, "CPU", "is", "are"), have)
	}
	return want, nil
}

// ldoms are the numbers of the step's ldoms: memory nodes, or sockets where the
// kernel has none.
func (p *Plan) ldoms() []int {
	t := p.in.Topology
	if t.Nodes != nil {
		return t.Nodes
	}
	all := make([]int, count(t.PUs, ldomOf))
	for i := range all {
		all[i] = i
	}
	return all
}

// ldom is the index of the ldom with the number, -1 if the step has none of it.
func (p *Plan) ldom(number int) int {
	for i, n := range p.ldoms() {
		if n == number {
			return i
		}
	}
	return -1
}

// ldomCPUs are the step's CPUs in ldom i.
func (p *Plan) ldomCPUs(i int) CPUSet {
	var s CPUSet
	for _, pu := range p.in.Topology.PUs {
		if pu.Ldom == i {
			s.add(pu.CPU)
		}
	}
	return s
}

// plural is "CPU 3 is" or "CPUs 3-4 are".
func plural(s CPUSet, noun, one, several string) string {
	if s.Len() == 1 {
		return fmt.Sprintf("%s %s %s", noun, s, one)
	}
	return fmt.Sprintf("%ss %s %s", noun, s, several)
}
