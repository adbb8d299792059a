package step

import (
	"fmt"
	"strings"
)

// DealNode is a node to which tasks are dealt.
type DealNode struct {
	Name string
	// CPUs are those that the step may use there.
	CPUs int
}

// Deal is what decides which ranks a node gets.
type Deal struct {
	// Nodes are the step's, by node id.
	Nodes []DealNode
	// NTasks counts the tasks of all nodes; each takes CPUsPerTask, at least 1.
	NTasks      int
	CPUsPerTask int
	// PerNode is the most tasks that a node gets; 0 is no limit.
	PerNode int
	// Overcommit lets a node have more tasks than its CPUs are for.
	Overcommit bool
	// Distribution's first level and its pack word are meant here.
	Distribution Distribution
}

// DealRanks gives the ranks of each node, ascending, by node id: each node gets
// one at least. It deals as srun does (srun(1), --distribution): "block", the
// default, gives the nodes even counts, as far as their CPUs go, of ranks that
// follow each other, or with Pack fills node after node; "cyclic" deals one rank
// to each node in turn; "plane" deals as many as its size at once, whatever the
// CPUs. Those that are left over with Overcommit go round once more.
func DealRanks(d Deal) ([][]int, error) {
	room, err := d.room()
	if err != nil {
		return nil, err
	}
	switch d.Distribution.Nodes {
	case "", DistBlock:
		if d.Distribution.Pack == DistPack {
			return inBlocks(d.packed(room)), nil
		}
		return inBlocks(CountRanks(d.cyclic(room))), nil
	case DistCyclic:
		return d.cyclic(room), nil
	case DistPlane:
		return d.planes(room)
	case DistArbitrary:
		return nil, fmt.Errorf("cannot deal tasks by --distribution=%s: no list of hosts is read; use block, cyclic or plane=N", DistArbitrary)
	}
	return nil, fmt.Errorf("cannot deal tasks by --distribution=%.80s: %s", d.Distribution.Nodes, distributionUsage)
}

// room counts the tasks for which each node has CPUs.
func (d *Deal) room() ([]int, error) {
	switch {
	case len(d.Nodes) < 1 || len(d.Nodes) > NodesMax:
		return nil, fmt.Errorf("cannot deal tasks to %d nodes: want 1 to %d", len(d.Nodes), NodesMax)
	case d.NTasks < len(d.Nodes):
		return nil, fmt.Errorf("cannot deal %d tasks to %d nodes: each node needs one at least", d.NTasks, len(d.Nodes))
	case d.PerNode > 0 && d.NTasks > d.PerNode*len(d.Nodes):
		return nil, fmt.Errorf("cannot deal %d tasks to %d nodes: --ntasks-per-node=%d lets them have %d", d.NTasks, len(d.Nodes), d.PerNode, d.PerNode*len(d.Nodes))
	}
	room, all := make([]int, len(d.Nodes)), 0
	for i, n := range d.Nodes {
		room[i] = n.CPUs / max(1, d.CPUsPerTask)
		if room[i] < 1 && !d.Overcommit {
			return nil, fmt.Errorf("cannot deal tasks to node %q: a task takes %d CPUs, and it has %d; --overcommit shares them", n.Name, max(1, d.CPUsPerTask), n.CPUs)
		}
		room[i] = max(1, room[i])
		if d.PerNode > 0 {
			room[i] = min(room[i], d.PerNode)
		}
		all += room[i]
	}
	if d.NTasks > all && !d.Overcommit {
		return nil, fmt.Errorf("cannot deal %d tasks: the CPUs of %s are for %d; --overcommit shares them", d.NTasks, d.names(), all)
	}
	return room, nil
}

// names are those of the first nodes, for messages.
func (d *Deal) names() string {
	var names []string
	for i, n := range d.Nodes {
		if i == 4 {
			names = append(names, fmt.Sprintf("%d more", len(d.Nodes)-i))
			break
		}
		names = append(names, n.Name)
	}
	return "nodes " + strings.Join(names, ", ")
}

// cyclic deals one task to each node in turn that has room, and when none has,
// to each.
func (d *Deal) cyclic(room []int) [][]int {
	ranks := make([][]int, len(room))
	limit := d.NTasks
	if d.PerNode > 0 {
		limit = d.PerNode
	}
	full := false
	for next := 0; next < d.NTasks; {
		before := next
		for i := range room {
			if next < d.NTasks && (len(ranks[i]) < room[i] || full && len(ranks[i]) < limit) {
				ranks[i] = append(ranks[i], next)
				next++
			}
		}
		full = full || next == before
	}
	return ranks
}

// packed counts the tasks of nodes that are filled one after the other, when
// each has its first.
func (d *Deal) packed(room []int) []int {
	counts, left := make([]int, len(room)), d.NTasks-len(room)
	for i := range counts {
		more := min(room[i]-1, left)
		counts[i] = 1 + more
		left -= more
	}
	for i := 0; left > 0; i = (i + 1) % len(counts) {
		if d.PerNode == 0 || counts[i] < d.PerNode {
			counts[i]++
			left--
		}
	}
	return counts
}

// planes deals Plane tasks to each node in turn. PerNode and the CPUs do not
// change whose turn it is: what they forbid is refused.
func (d *Deal) planes(room []int) ([][]int, error) {
	size := d.Distribution.Plane
	if size < 1 {
		return nil, fmt.Errorf("cannot deal tasks in planes of %d: write --distribution=plane=N", size)
	}
	if last := (len(room) - 1) * size; d.NTasks <= last {
		return nil, fmt.Errorf("cannot deal %d tasks to %d nodes: in planes of %d the first %d nodes get them all; use fewer nodes or smaller planes", d.NTasks, len(room), size, (d.NTasks+size-1)/size)
	}
	ranks := make([][]int, len(room))
	for r := range d.NTasks {
		i := r / size % len(room)
		ranks[i] = append(ranks[i], r)
	}
	for i, r := range ranks {
		if d.PerNode > 0 && len(r) > d.PerNode {
			return nil, fmt.Errorf("cannot deal %d tasks in planes of %d: node %q would get %d, and --ntasks-per-node is %d", d.NTasks, size, d.Nodes[i].Name, len(r), d.PerNode)
		}
		if len(r) > room[i] && !d.Overcommit {
			return nil, fmt.Errorf("cannot deal %d tasks in planes of %d: node %q would get %d, and its %d CPUs are for %d; --overcommit shares them", d.NTasks, size, d.Nodes[i].Name, len(r), d.Nodes[i].CPUs, room[i])
		}
	}
	return ranks, nil
}

// CountRanks counts the tasks of each node, for CountList.
func CountRanks(ranks [][]int) []int {
	counts := make([]int, len(ranks))
	for i := range ranks {
		counts[i] = len(ranks[i])
	}
	return counts
}

// inBlocks numbers so many tasks of each node one after the other.
func inBlocks(counts []int) [][]int {
	ranks, next := make([][]int, len(counts)), 0
	for i, n := range counts {
		for range n {
			ranks[i] = append(ranks[i], next)
			next++
		}
	}
	return ranks
}
