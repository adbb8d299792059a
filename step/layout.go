package step

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// NodesMax bounds the nodes of a step.
const NodesMax = 4096

// Layout maps the tasks of a step of several nodes to the nodes. A step of one node has
// none. noded makes none: a controller of several nodes fills it in.
type Layout struct {
	// Nodes are the step's nodes by node id.
	Nodes []LayoutNode `json:"nodes"`
}

// LayoutNode is one node of a step.
type LayoutNode struct {
	Name string `json:"name"` // NodeName
	// Ranks are the ranks of its tasks, ascending, as a list: "0-3,8". A task's
	// local id is its place in it.
	Ranks string `json:"ranks"`
}

// LocalRanks are the ranks of this node's tasks by local id. Every list in stepd that is
// indexed by local id has this length; NTasks counts the tasks of all nodes.
func (s *Spec) LocalRanks() []int {
	if s.Layout == nil {
		ranks := make([]int, s.NTasks)
		for i := range ranks {
			ranks[i] = i
		}
		return ranks
	}
	ranks, err := ParseCPUList(s.Layout.Nodes[s.NodeID].Ranks)
	if err != nil {
		return nil // Check has refused it
	}
	return ranks
}

// SeenRank is a rank as the tasks see it, in their environment and before their labelled lines.
func (s *Spec) SeenRank(rank int) int { return s.FirstRank + rank }

// SeenNodeID is this node's place as the tasks see it.
func (s *Spec) SeenNodeID() uint32 { return s.FirstNode + s.NodeID }

// MPISpec is the step as its MPI ranks see it: with AllLayout a Spec of all components, else s itself.
// The CPUs of the job are unknown there, since each component has its own.
func (s *Spec) MPISpec() *Spec {
	if s.AllLayout == nil {
		return s
	}
	all := *s
	all.ID, all.Layout, all.NodeID, all.NTasks = s.AllID, s.AllLayout, s.AllNodeID, s.AllTasks
	all.Apps, all.JobCPUs, all.JobAllCPUs = nil, "", 0
	all.FirstNode, all.FirstRank, all.AllTasks, all.AllLayout = 0, 0, 0, nil
	return &all
}

// MPIKey names what the step's MPI has in a node's folders, for all components the same.
func (s *Spec) MPIKey() string { return cmp.Or(s.AllKey, s.ID.Key()) }

// LocalTasks counts this node's tasks.
func (s *Spec) LocalTasks() int {
	if s.Layout == nil {
		return s.NTasks
	}
	return len(s.LocalRanks())
}

// NodeCount counts the step's nodes.
func (s *Spec) NodeCount() int {
	if s.Layout == nil {
		return 1
	}
	return len(s.Layout.Nodes)
}

// TaskCounts counts the tasks of each node, by node id.
func (s *Spec) TaskCounts() []int {
	if s.Layout == nil {
		return []int{s.NTasks}
	}
	counts := make([]int, len(s.Layout.Nodes))
	for i, n := range s.Layout.Nodes {
		ranks, _ := ParseCPUList(n.Ranks) // Check has refused a bad one
		counts[i] = len(ranks)
	}
	return counts
}

// RankNodes are the node ids of all ranks.
func (s *Spec) RankNodes() []int {
	nodes := make([]int, s.NTasks)
	if s.Layout == nil {
		return nodes
	}
	for id, n := range s.Layout.Nodes {
		ranks, _ := ParseCPUList(n.Ranks) // Check has refused a bad one
		for _, r := range ranks {
			if r < len(nodes) {
				nodes[r] = id
			}
		}
	}
	return nodes
}

// Check refuses a layout without the node, or in which one of the ntasks ranks is missing
// or appears twice.
func (l *Layout) Check(node uint32, ntasks int) error {
	if len(l.Nodes) < 1 || len(l.Nodes) > NodesMax || int(node) >= len(l.Nodes) {
		return fmt.Errorf("cannot use a layout of %d nodes for node %d: at most %d", len(l.Nodes), node, NodesMax)
	}
	var all []int
	for id, n := range l.Nodes {
		ranks, err := ParseCPUList(n.Ranks)
		if err != nil {
			return fmt.Errorf("cannot use the ranks of node %d (%q): %w", id, n.Name, err)
		}
		all = append(all, ranks...)
	}
	slices.Sort(all)
	for i, r := range all {
		if i != r {
			return fmt.Errorf("cannot use the layout: rank %d is nowhere, or rank %d twice", i, r)
		}
	}
	if len(all) != ntasks {
		return fmt.Errorf("cannot use the layout: it has %d of %d ranks", len(all), ntasks)
	}
	return nil
}

// cpuMax bounds a CPU number, so that a list cannot make us allocate without end.
const cpuMax = 1 << 16

// FormatCPUList writes ascending CPU numbers as the kernel does in its list
// format (cpuset(7)): "0-2,5". No numbers give "".
func FormatCPUList(cpus []int) string {
	var b strings.Builder
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(cpus[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(cpus[j]))
		}
		i = j + 1
	}
	return b.String()
}

// ParseCPUList reads the kernel's list format. Numbers must ascend and not
// repeat; the empty string is the empty list.
func ParseCPUList(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var cpus []int
	last := -1
	for _, part := range strings.Split(s, ",") {
		lo, hi, ranged := strings.Cut(part, "-")
		first, err := parseCPU(lo)
		if err != nil {
			return nil, fmt.Errorf("cannot parse CPU list %.80q: %w", s, err)
		}
		end := first
		if ranged {
			if end, err = parseCPU(hi); err != nil {
				return nil, fmt.Errorf("cannot parse CPU list %.80q: %w", s, err)
			}
		}
		if first <= last || end < first {
			return nil, fmt.Errorf("cannot parse CPU list %.80q: %q does not ascend", s, part)
		}
		for n := first; n <= end; n++ {
			cpus = append(cpus, n)
		}
		last = end
	}
	return cpus, nil
}

func parseCPU(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n >= cpuMax {
		return 0, fmt.Errorf("%.20q is not a CPU number", s)
	}
	return int(n), nil
}
