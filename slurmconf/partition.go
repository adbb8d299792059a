package slurmconf

import (
	"slices"
	"strings"
)

// partitionLine is what a node daemon wants of a PartitionName line.
type partitionLine struct {
	name      string
	nodes     string
	isDefault bool
}

// partitionLine reads one PartitionName line; all other keys of it are the
// controller's.
func (l *loader) partitionLine(s statement) {
	part := l.partDefault
	for _, p := range s.pairs[1:] {
		switch {
		case p.is("Nodes"):
			part.nodes = p.value
		case p.is("Default"):
			if f := boolean(&part.isDefault)(p.value); f != nil {
				l.probs.value(s, p, f)
			}
		}
	}
	if strings.EqualFold(s.pairs[0].value, "DEFAULT") {
		l.partDefault = part
		return
	}
	part.name = s.pairs[0].value
	l.parts = append(l.parts, part)
}

// choosePartition names the partition that a step of this node belongs to
// where nobody says another.
func (l *loader) choosePartition() {
	for _, p := range l.parts {
		if (l.cfg.Partition == "" || p.isDefault) && l.holds(p) {
			l.cfg.Partition = p.name
		}
	}
}

// holds tells whether this node is in the partition. A list that cannot be
// expanded, as one with the name of a NodeSet in it, holds what it names.
func (l *loader) holds(p partitionLine) bool {
	if strings.EqualFold(p.nodes, "ALL") {
		return true
	}
	names, err := ExpandHosts(p.nodes)
	return err == nil && slices.Contains(names, l.cfg.Node.Name)
}
