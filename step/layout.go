package step

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// NodesMax bounds the nodes of a step.
const NodesMax = 4096

// Layout says where the tasks of a step of several nodes are (ADR 0009). A step
// of one node has none.
type Layout struct {
	// Nodes are the step's nodes by node id.
	Nodes []LayoutNode `json:"nodes"`
	// Launcher is the SHA-256 of the public key of the step's launcher, as
	// LayoutNode.Key is a stepd's: node 0's stepd takes streams, signals and cancels
	// from it. nil is nobody.
	Launcher []byte `json:"launcher,omitempty"`
	// Watcher is that of whoever the step's owner lets see its output: node 0's stepd shows
	// it, and takes what is typed into its terminal. nil is nobody.
	Watcher []byte `json:"watcher,omitempty"`
	// Net is what the head's site says to the step's stepds; all of them and the
	// launcher have the same.
	Net NetConf `json:"net,omitzero"`
	// NoKill is that of the Request: all nodes of the step are then connected to node 0
	// itself, so that with another one nobody else is lost.
	NoKill bool `json:"no_kill,omitempty"`
}

// NetConf bounds what the stepds of a step wait for and hold, by the keys of
// stepd.conf. The zero value of each field is its default, which is named beside it.
type NetConf struct {
	// Keepalive is how often a stepd that has nothing to say says so; one that was
	// not heard for three of them is lost: 5 s.
	Keepalive time.Duration `json:"keepalive,omitempty"`
	// Drain is how long, after the tasks' ends, output is kept for a launcher that
	// takes none of it: 60 s.
	Drain time.Duration `json:"drain,omitempty"`
	// GatherBytes bounds what one gathering brings together: 64 MiB; four times as
	// much is held of all that go on.
	GatherBytes int `json:"gather_bytes,omitempty"`
	// MessageBytes bounds one question between two nodes, and its answer: 16 MiB.
	MessageBytes int `json:"message_bytes,omitempty"`
}

// LayoutNode is one node of a step.
type LayoutNode struct {
	Name string `json:"name"` // NodeName
	// Addr is where its stepd listens for the others: "10.1.2.3:40001".
	Addr string `json:"addr"`
	// Key is the SHA-256 of the public key (its SubjectPublicKeyInfo) that its stepd
	// proves to have.
	Key []byte `json:"key"`
	// Ranks are those of its tasks, ascending, as a list: "0-3,8". A task's local id
	// is its place in there.
	Ranks string `json:"ranks"`
}

// LocalRanks are the ranks of this node's tasks by local id: what is counted by
// local id in stepd has this length. NTasks counts the tasks of all nodes.
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

// CountList writes counts by node as Slurm does: "4(x2),3".
func CountList(counts []int) string {
	var b strings.Builder
	for i := 0; i < len(counts); {
		j := i + 1
		for j < len(counts) && counts[j] == counts[i] {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(counts[i]))
		if j-i > 1 {
			fmt.Fprintf(&b, "(x%d)", j-i)
		}
		i = j
	}
	return b.String()
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

// Check refuses a layout in which a rank of ntasks is nowhere, or twice, or that
// does not have the node.
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
