package slurmconf

import (
	"slices"
	"strings"
)

// partitionLine is what a node daemon wants of a PartitionName line.
type partitionLine struct {
	from      statement
	name      string
	nodes     string
	isDefault bool
	// Its own memory keys, over the site's; nil is not set.
	defPerCPU, defPerNode, maxPerCPU, maxPerNode *uint64
	cpuBind                                      string
}

func (p *partitionLine) keys() keySet {
	return keySet{
		"partitionname": nothing, "nodes": parsed(&p.nodes, hostList), "default": boolean(&p.isDefault), "cpubind": parsed(&p.cpuBind, cpuBind),
		"defmempercpu": optional(&p.defPerCPU, memory), "defmempernode": optional(&p.defPerNode, memory),
		"maxmempercpu": optional(&p.maxPerCPU, memory), "maxmempernode": optional(&p.maxPerNode, memory),
	}
}

// partitionLine reads one PartitionName line; all other keys of it are the
// controller's.
func (l *loader) partitionLine(s statement) {
	part := l.partDefault
	keys := part.keys()
	for _, p := range s.pairs[1:] {
		if set := keys[strings.ToLower(p.key)]; set != nil {
			if f := set(p.value); f != nil {
				l.probs.value(s, p, f)
			}
		}
	}
	l.excludeIn(s)
	if strings.EqualFold(s.pairs[0].value, "DEFAULT") {
		l.partDefault = part
		return
	}
	part.name, part.from = s.pairs[0].value, s
	l.parts = append(l.parts, part)
}

// choosePartition names the partition that a step of this node belongs to
// unless the request names another.
func (l *loader) choosePartition() {
	for _, p := range l.parts {
		if (l.cfg.Partition == "" || p.isDefault) && l.holds(p) {
			l.cfg.Partition, l.part = p.name, &p
		}
	}
}

// holds reports whether this node is in the partition. A list that cannot be
// expanded, as one with the name of a NodeSet in it, holds what it names.
func (l *loader) holds(p partitionLine) bool {
	if strings.EqualFold(p.nodes, "ALL") {
		return true
	}
	names, err := ExpandHosts(p.nodes)
	return err == nil && slices.Contains(names, l.cfg.Node.Name)
}

// defaultBinding puts CpuBind of the node or of its partition over the site's.
func (l *loader) defaultBinding() {
	bind := l.cfg.Node.CpuBind
	if bind == "" && l.part != nil {
		bind = l.part.cpuBind
	}
	if bind != "" {
		l.cfg.TaskPluginParam.Bind = bind
	}
}

// partitionMemory puts the partition's memory keys over the site's; one of a
// pair that excludes the other takes its place.
func (l *loader) partitionMemory() {
	c, p := l.cfg, l.part
	if p == nil {
		return
	}
	for _, k := range []struct{ perCPU, perNode, cpu, node *uint64 }{
		{p.defPerCPU, p.defPerNode, &c.DefMemPerCPU, &c.DefMemPerNode},
		{p.maxPerCPU, p.maxPerNode, &c.MaxMemPerCPU, &c.MaxMemPerNode},
	} {
		switch {
		case k.perCPU != nil:
			*k.cpu, *k.node = *k.perCPU, 0
		case k.perNode != nil:
			*k.cpu, *k.node = 0, *k.perNode
		default:
			continue
		}
		l.memoryFrom = p.from
	}
}
