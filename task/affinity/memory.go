package affinity

import (
	"fmt"

	"stepd/srunopt"
	"stepd/step/launch"
)

// placeMemory finds each task's memory policy.
func (p *Plan) placeMemory() error {
	bind := p.in.Binding.Mem
	switch bind.Kind {
	case srunopt.MemBindUnset, srunopt.MemBindNone:
		return nil
	case srunopt.MemBindLocal:
		p.Mem = []launch.MemPolicy{{LocalID: launch.AllRanks, Mode: launch.MemLocal}}
		return nil
	case srunopt.MemBindRank:
		for id := range p.in.NTasks {
			if err := p.memory(id, []int{id}); err != nil {
				return err
			}
		}
		return nil
	case srunopt.MemBindMap, srunopt.MemBindMask:
	}
	items, err := srunopt.MemItems(bind)
	if err != nil {
		return fmt.Errorf("cannot bind memory (--mem-bind=%s): %w", bind.Kind, err)
	}
	for id := 0; id < p.in.NTasks; {
		for _, item := range items {
			for range min(item.Times, p.in.NTasks-id) {
				if err := p.memory(id, item.Numbers); err != nil {
					return err
				}
				id++
			}
		}
	}
	return nil
}

// memory gives a task the memory of the nodes.
func (p *Plan) memory(id int, nodes []int) error {
	bind, t := p.in.Binding.Mem, p.in.Topology
	fail := func(format string, args ...any) error {
		return fmt.Errorf("cannot bind the memory of task %d (--mem-bind=%s): %s", p.rank(id), bind.Kind, fmt.Sprintf(format, args...))
	}
	want := NewCPUSet(nodes...)
	switch missing := want.without(t.Memory); {
	case t.Memory.Len() == 0:
		return fail("the kernel has no memory nodes")
	case want.Len() == 0:
		return fail("the mask names no memory node: there are %s", t.Memory)
	case missing.and(t.NodesOnline).Len() > 0:
		return fail("%s without memory: %s have some", plural(missing.and(t.NodesOnline), "node", "is", "are"), t.Memory)
	case missing.Len() > 0:
		return fail("there is no memory node %s: there are %s", missing, t.Memory)
	}
	policy := launch.MemPolicy{LocalID: id, Mode: launch.MemBound, Nodes: want}
	if bind.Prefer {
		policy.Mode, policy.Nodes = launch.MemPreferred, NewCPUSet(nodes[0])
	}
	p.Mem = append(p.Mem, policy)
	return nil
}

// memoryOf is the set of nodes that a task's policy names.
func (p *Plan) memoryOf(id int) CPUSet {
	if id < len(p.Mem) && p.Mem[id].LocalID == id {
		return p.Mem[id].Nodes
	}
	return p.in.Topology.Memory
}
