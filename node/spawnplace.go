package node

import (
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"stepd/api"
	"stepd/step"
)

// spawned is what a step has from the one whose tasks have spawned it.
type spawned struct {
	Parent step.ID         `json:"parent"`
	Preput []step.KeyValue `json:"preput,omitempty"`
	// ranks are those of each node, where the program has said so.
	ranks map[string][]int
}

// tell puts it into the spec; nil is of a step that nobody has spawned.
func (s *spawned) tell(spec *step.Spec) {
	if s != nil {
		spec.Parent, spec.Preput = &s.Parent, s.Preput
	}
}

// hostWord is one word of the hint host: so many tasks on a node.
type hostWord struct {
	node  string
	tasks int // 0 is not told
}

// placeSpawned chooses the nodes of a step that a task here spawns in j: hosts are
// the hints of its commands, nil without one. Without hints it has the job's nodes, as
// a step of srun's that says nothing has; of those no more than it has tasks, from this
// one on. ranks are dealt by the nodes' CPUs where they are nil.
func (n *Node) placeSpawned(j *job, req *step.Request, hosts []string) (nodes []string, ranks map[string][]int, err error) {
	all := j.Nodes
	if len(all) == 0 {
		all = []string{n.cfg.NodeName}
	}
	if hosts == nil {
		first := max(0, slices.Index(all, n.cfg.NodeName))
		from := append(slices.Clone(all[first:]), all[:first]...)
		return inListOrder(all, from[:min(len(from), req.NTasks)]), nil, nil
	}
	if len(hosts) != len(req.Apps) {
		return nil, nil, api.Errorf(api.Internal, "internal error: %d hints for %d commands", len(hosts), len(req.Apps))
	}
	ranks = make(map[string][]int)
	next := 0
	for i := range req.Apps {
		var words []hostWord
		if hosts[i] == "" {
			for _, name := range all {
				words = append(words, hostWord{node: name})
			}
		} else if words, err = n.hostWords(j, all, hosts[i]); err != nil {
			return nil, nil, api.Errorf(api.InvalidArgument, "cannot spawn command %d of %d: %v", i+1, len(req.Apps), err)
		}
		for k, count := range dealWords(words, req.Apps[i].NTasks) {
			for range count {
				ranks[words[k].node] = append(ranks[words[k].node], next)
				next++
			}
		}
	}
	for name := range ranks {
		nodes = append(nodes, name)
	}
	return inListOrder(all, nodes), ranks, nil
}

// inListOrder are those of all that are in some.
func inListOrder(all, some []string) (out []string) {
	for _, name := range all {
		if slices.Contains(some, name) {
			out = append(out, name)
		}
	}
	return out
}

// hostWords reads the hint host: "n1,n2:4".
func (n *Node) hostWords(j *job, all []string, text string) (words []hostWord, err error) {
	for word := range strings.SplitSeq(text, ",") {
		name, count, counted := strings.Cut(strings.TrimSpace(word), ":")
		w := hostWord{node: n.nodeOfHost(all, name)}
		if w.node == "" {
			return nil, fmt.Errorf("its hint host names %.64q, which is no node of job %d (%s)", name, j.ID, n.listOf(all))
		}
		if counted {
			tasks, err := strconv.ParseUint(count, 10, 31)
			if err != nil || tasks == 0 || tasks > math.MaxInt32 {
				return nil, fmt.Errorf("its hint host has %.64q: after the colon there is a number of tasks", word)
			}
			w.tasks = int(tasks)
		}
		words = append(words, w)
	}
	return words, nil
}

// listOf writes names as a list of hosts.
func (n *Node) listOf(names []string) string {
	if n.cfg.Others == nil {
		return strings.Join(names, ",")
	}
	return n.cfg.Others.List(names)
}

// nodeOfHost is the node of all that a program means by host: by its NodeName, that
// name without a domain, its NodeAddr, or localhost. "" is none.
func (n *Node) nodeOfHost(all []string, host string) string {
	if host == "localhost" {
		host = n.cfg.NodeName
	}
	if slices.Contains(all, host) {
		return host
	}
	for _, name := range all {
		short, _, _ := strings.Cut(name, ".")
		if n.cfg.Others == nil {
			if host == short {
				return name
			}
			continue
		}
		node, _ := n.cfg.Others.find(name)
		addr, _, err := net.SplitHostPort(node.Addr)
		if host == short || err == nil && host == addr {
			return name
		}
	}
	if short, _, domain := strings.Cut(host, "."); domain && net.ParseIP(host) == nil && slices.Contains(all, short) {
		return short
	}
	return ""
}

// dealWords counts the tasks of each word: first those that have a number, in their
// order; what is left goes evenly to those that have none, else to all.
func dealWords(words []hostWord, ntasks int) []int {
	counts, open := make([]int, len(words)), []int(nil)
	for i, w := range words {
		counts[i] = min(w.tasks, ntasks)
		ntasks -= counts[i]
		if w.tasks == 0 {
			open = append(open, i)
		}
	}
	if len(open) == 0 {
		for i := range words {
			open = append(open, i)
		}
	}
	for k, i := range open {
		share := ntasks / len(open)
		if k < ntasks%len(open) {
			share++
		}
		counts[i] += share
	}
	return counts
}
