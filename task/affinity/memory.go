package affinity

import (
	"fmt"

	"stepd/step"
)

// placeMemory finds each rank's memory policy.
func (p *Plan) placeMemory() error {
	bind := p.in.Binding.Mem
	switch bind.Kind {
	case step.MemBindUnset, step.MemBindNone:
		return nil
	case step.MemBindLocal:
		p.Mem = []step.MemPolicy{{Rank: step.AllRanks, Mode: step.MemLocal}}
		return nil
	case step.MemBindRank:
		for rank := range p.in.NTasks {
			if err := p.memory(rank, []int{rank}); err != nil {
				return err
			}
		}
		return nil
	case step.MemBindMap, step.MemBindMask:
	}
	items, err := bind.Items()
	if err != nil {
		return fmt.Errorf("cannot bind memory (--mem-bind=%s): %w", bind.Kind, err)
	}
	for rank := 0; rank < p.in.NTasks; {
		for _, item := range items {
			for range min(item.Times, p.in.NTasks-rank) {
				if err := p.memory(rank, item.Numbers); err != nil {
					return err
				}
				rank++
			}
		}
	}
	return nil
}

// memory gives rank the memory of the nodes.
func (p *Plan) memory(rank int, nodes []int) error {
	bind, t := p.in.Binding.Mem, p.in.Topology
	fail := func(format string, args ...any) error {
		return fmt.Errorf("cannot bind the memory of task %d (--mem-bind=%s): %s", rank, bind.Kind, fmt.Sprintf(format, args...))
	}
	want := NewCPUSet(nodes...)
	switch missing := want.without(t.Memory); {
	case t.Memory.Len() == 0:
		return fail("the kernel tells of no memory nodes")
	case want.Len() == 0:
		return fail("the mask names no memory node: there are %s", t.Memory)
	case missing.and(t.NodesOnline).Len() > 0:
		return fail("%s without memory: %s have some", plural(missing.and(t.NodesOnline), "node", "is", "are"), t.Memory)
	case missing.Len() > 0:
		return fail("there is no memory node %s: there are %s", missing, t.Memory)
	}
	policy := step.MemPolicy{Rank: rank, Mode: step.MemBound, Nodes: want}
	if bind.Prefer {
		policy.Mode, policy.Nodes = step.MemPreferred, NewCPUSet(nodes[0])
	}
	p.Mem = append(p.Mem, policy)
	return nil
}

// memoryOf is the set of nodes that a rank's policy names.
func (p *Plan) memoryOf(rank int) CPUSet {
	if rank < len(p.Mem) && p.Mem[rank].Rank == rank {
		return p.Mem[rank].Nodes
	}
	return p.in.Topology.Memory
}
