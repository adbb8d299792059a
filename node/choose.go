package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"stepd/api"
	"stepd/step"
)

// candidate is a node that a step may get.
type candidate struct {
	name string
	free int    // CPUs
	cpus int    // all that it has
	why  string // why it cannot be had, "" it can
	lost bool   // it has not answered
	next step.ID
}

// severalNodes tells whether the request is one for more than this node, or for
// another one: then it has a head.
func (n *Node) severalNodes(req *step.Request) bool {
	if n.spreads(req) || req.NNodes != 1 || req.NNodesMax > 1 || len(req.WantNodes) > 1 || slices.Contains(req.NotNodes, n.cfg.NodeName) {
		return true
	}
	return len(req.WantNodes) == 1 && req.WantNodes[0] != n.cfg.NodeName
}

// spreads tells whether a step of which nobody has said how many nodes it is to have
// needs more than this one, and there are others.
func (n *Node) spreads(req *step.Request) bool {
	if !req.Spread || req.Job != nil || req.Overcommit || req.NNodes != 1 || req.NNodesMax > 0 || len(req.WantNodes) > 0 {
		return false
	}
	if n.peers == nil || n.cfg.Others.TLS == nil || len(n.cfg.Others.Partition) < 2 {
		return false
	}
	cpus, _, _ := n.reg.room(nil)
	return req.NTasks*max(1, req.CPUsPerTask) > cpus || req.TasksPerNode > 0 && req.NTasks > req.TasksPerNode
}

// widen says in a request that spreads how many nodes it may have, and returns it
// encoded; raw is any other one.
func (n *Node) widen(req *step.Request, raw []byte) ([]byte, error) {
	if !n.spreads(req) {
		return raw, nil
	}
	req.NNodesMax = min(len(n.cfg.Others.Partition), req.NTasks)
	return encodeRequest(req)
}

// oneNode refuses what only steps can have.
func (n *Node) oneNode(req *step.Request, what string) error {
	if !n.severalNodes(req) {
		return nil
	}
	return api.Errorf(api.InvalidArgument, "nnodes: %s is for this node (%s) alone", what, n.cfg.NodeName)
}

// nodesOf are the nodes that a step of req may have, in slurm.conf's order.
func (n *Node) nodesOf(req *step.Request) ([]string, error) {
	if n.peers == nil || n.cfg.Others.TLS == nil {
		return nil, api.NewError(api.FailedPrecondition, errNoPeers.Error())
	}
	for _, list := range [][]string{req.WantNodes, req.NotNodes} {
		for _, name := range list {
			if _, ok := n.cfg.Others.find(name); !ok {
				return nil, api.Errorf(api.InvalidArgument, "nodes: slurm.conf has no NodeName %q", name)
			}
		}
	}
	from := n.cfg.Others.Partition
	if req.Job != nil {
		j := n.reg.job(*req.Job)
		if j == nil {
			return nil, api.Errorf(api.NotFound, "no such job \"%d\"", *req.Job)
		}
		if from = j.Nodes; from == nil {
			from = []string{n.cfg.NodeName}
		}
		for _, name := range req.WantNodes {
			if !slices.Contains(from, name) {
				return nil, api.Errorf(api.InvalidArgument, "nodes: node %q is not one of job %d, which has %s", name, *req.Job, n.cfg.Others.List(from))
			}
		}
	}
	var nodes []string
	for _, node := range n.cfg.Others.Nodes {
		if slices.Contains(req.NotNodes, node.Name) {
			if slices.Contains(req.WantNodes, node.Name) {
				return nil, api.Errorf(api.InvalidArgument, "nodes: node %q is asked for and excluded", node.Name)
			}
			continue
		}
		// -w may name nodes of other partitions: it is the administrator's files that
		// let them in.
		if slices.Contains(from, node.Name) || req.Job == nil && slices.Contains(req.WantNodes, node.Name) {
			nodes = append(nodes, node.Name)
		}
	}
	return nodes, nil
}

// mayGet are the nodes of which a batch job of req has its own: those that it names, where it
// names all.
func (n *Node) mayGet(req *step.Request) ([]string, error) {
	names, err := n.nodesOf(req)
	if err == nil && len(req.WantNodes) >= max(req.NNodes, req.NNodesMax) {
		names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(req.WantNodes, name) })
	}
	return names, err
}

// probe asks the nodes what they have.
func (n *Node) probe(ctx context.Context, req *step.Request, nodes []string) ([]candidate, error) {
	answers, err := n.fan(ctx, "probe", probeRequest{Job: req.Job}, partsOf(nodes))
	if err != nil {
		return nil, err
	}
	cands := make([]candidate, len(answers))
	for i, a := range answers {
		c := candidate{name: a.node}
		var r probeReply
		switch {
		case a.err != nil:
			c.why, c.lost = api.MessageOf(a.err), isLost(a.err)
		case json.Unmarshal(a.body, &r) != nil:
			c.why = "its answer cannot be parsed"
		case r.Drained != "":
			c.why = r.Drained
		default:
			c.free, c.cpus, c.next = r.Free, r.CPUs, r.Next
			switch {
			case req.Overcommit || req.Overlap:
				c.free = r.CPUs
			case req.Job != nil && req.Binding.Whole && r.Free < r.CPUs:
				c.free = 0
			}
		}
		cands[i] = c
	}
	return cands, nil
}

// isLost tells whether a node has not answered.
func isLost(err error) bool {
	return api.CodeOf(err) == api.Unavailable || api.CodeOf(err) == api.DeadlineExceeded
}

// room is how many of the step's tasks the node has CPUs for.
func (c candidate) room(req *step.Request) int {
	r := c.free / max(1, req.CPUsPerTask)
	if req.Overcommit {
		r = req.NTasks
	}
	if req.TasksPerNode > 0 {
		r = min(r, req.TasksPerNode)
	}
	return r
}

// choose picks the step's nodes among cands, which keep their order: those that
// are asked for by name, then the first ones with room, as many as have room for
// all tasks, from NNodes to NNodesMax.
func choose(req *step.Request, cands []candidate) ([]candidate, error) {
	least := max(req.NNodes, len(req.WantNodes))
	most := max(req.NNodesMax, least)
	var picked, usable []candidate
	var left []string // why others cannot be had
	for _, c := range cands {
		wanted := slices.Contains(req.WantNodes, c.name)
		switch {
		case c.why == "" && c.room(req) < 1:
			c.why = fmt.Sprintf("%d CPUs are free", c.free)
			fallthrough
		case c.why != "":
			if wanted {
				return nil, api.Errorf(api.ResourceExhausted, "node %s: %s", c.name, c.why)
			}
			left = append(left, c.name+": "+c.why)
		case wanted:
			picked = append(picked, c)
		default:
			usable = append(usable, c)
		}
	}
	room := func(nodes []candidate) (all int) {
		for _, c := range nodes {
			all += c.room(req)
		}
		return all
	}
	if len(picked)+len(usable) < least {
		return nil, api.Errorf(api.ResourceExhausted, "the step does not fit: %d nodes are needed and %d of %d can be had%s", least, len(picked)+len(usable), len(cands), because(left))
	}
	byRoom := slices.Clone(usable)
	slices.SortStableFunc(byRoom, func(a, b candidate) int { return b.free - a.free })
	var best []candidate
	for _, from := range [][]candidate{usable, byRoom} { // in order; else those with most room, or where they are fewer
		chosen := slices.Clone(picked)
		for _, c := range from {
			if len(chosen) >= most || len(chosen) >= least && room(chosen) >= req.NTasks {
				break
			}
			chosen = append(chosen, c)
		}
		if room(chosen) >= req.NTasks && (best == nil || len(chosen) < len(best)) {
			best = chosen
		}
	}
	if best != nil {
		return inOrder(cands, best), nil
	}
	return nil, api.Errorf(api.ResourceExhausted, "the step does not fit: %d tasks of %s each on %s%s; --overcommit shares CPUs among tasks",
		req.NTasks, cpuCount(max(1, req.CPUsPerTask)), nodeCount(least, most), because(left))
}

func nodeCount(least, most int) string {
	switch {
	case most > least:
		return fmt.Sprintf("%d to %d nodes", least, most)
	case least == 1:
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", least)
}

// because tells the first of the reasons.
func because(left []string) string {
	if len(left) == 0 {
		return ""
	}
	more := ""
	if len(left) > 3 {
		left, more = left[:3], fmt.Sprintf("; and %d more", len(left)-3)
	}
	return " (" + strings.Join(left, "; ") + more + ")"
}

func inOrder(all, chosen []candidate) (out []candidate) {
	for _, c := range all {
		if slices.ContainsFunc(chosen, func(x candidate) bool { return x.name == c.name }) {
			out = append(out, c)
		}
	}
	return out
}

// fitsAlone tells whether a step would fit in its job if it had no others.
func fitsAlone(req *step.Request, cands []candidate) bool {
	all := slices.Clone(cands)
	for i := range all {
		all[i].free = all[i].cpus
	}
	_, err := choose(req, all)
	return err == nil
}

// chooseAgain is how long it takes until nodes without room are asked again.
const chooseAgain = 50 * time.Millisecond

// chooseSoon is choose among the nodes as they are now. A step that does not fit
// waits as long for one that is ending as on one node; here nobody tells when it
// has ended.
func (n *Node) chooseSoon(ctx context.Context, req *step.Request, nodes []string) ([]candidate, error) {
	late := time.Now().Add(admitGrace)
	for {
		cands, err := n.probe(ctx, req, nodes)
		if err != nil {
			return nil, err
		}
		chosen, err := choose(req, cands)
		if err != nil && req.Job != nil && fitsAlone(req, cands) {
			return nil, waitsFor(api.MessageOf(err), fmt.Sprintf("%s of job %d on its nodes", cpuCount(req.NTasks*max(1, req.CPUsPerTask)), *req.Job))
		}
		if err == nil || time.Now().After(late) {
			return chosen, err
		}
		select {
		case <-time.After(chooseAgain):
		case <-ctx.Done():
			return nil, api.ContextError(ctx.Err())
		}
	}
}

// placeStep chooses the nodes of a step and deals its ranks to them. next is the
// number to propose; sp is as reserveHead's.
func (n *Node) placeStep(ctx context.Context, req *step.Request, sp *spawned) (layout *step.Layout, next step.ID, err error) {
	nodes, err := n.nodesOf(req)
	if err != nil {
		return nil, step.ID{}, err
	}
	chosen, err := n.chooseSoon(ctx, req, nodes)
	if err != nil {
		return nil, step.ID{}, err
	}
	if layout, err = n.dealTo(req, chosen, sp); err != nil {
		return nil, step.ID{}, err
	}
	for _, c := range chosen {
		next.Job, next.Step = max(next.Job, c.next.Job), max(next.Step, c.next.Step)
	}
	if req.Job == nil {
		next.Step = 0
		own, err := n.store.nextID(req)
		if err != nil {
			return nil, step.ID{}, api.NewError(api.Internal, err.Error())
		}
		next.Job = max(next.Job, own.Job)
		return layout, next, nil
	}
	// A node of the job that has no part may have given numbers to others.
	j := n.reg.job(*req.Job)
	if j == nil {
		return nil, step.ID{}, api.Errorf(api.NotFound, "no such job \"%d\"", *req.Job)
	}
	if len(j.Nodes) > 0 && chosen[0].name != j.Nodes[0] {
		if next, err = n.freeNumber(ctx, j, next.Step); err != nil {
			return nil, step.ID{}, api.NewError(api.Unavailable, err.Error())
		}
	}
	return layout, next, nil
}

// dealTo deals the ranks of a step to its nodes; sp is as reserveHead's.
func (n *Node) dealTo(req *step.Request, chosen []candidate, sp *spawned) (*step.Layout, error) {
	deal := step.Deal{
		NTasks: req.NTasks, CPUsPerTask: req.CPUsPerTask, PerNode: req.TasksPerNode, Overcommit: req.Overcommit,
		Distribution: req.Binding.Distribution,
	}
	for _, c := range chosen {
		deal.Nodes = append(deal.Nodes, step.DealNode{Name: c.name, CPUs: c.free})
	}
	var ranks [][]int
	if sp != nil && sp.ranks != nil {
		for _, c := range chosen {
			ranks = append(ranks, sp.ranks[c.name])
		}
	} else {
		var err error
		if ranks, err = step.DealRanks(deal); err != nil {
			return nil, api.NewError(api.InvalidArgument, err.Error())
		}
	}
	layout := &step.Layout{NoKill: req.NoKill}
	if n.peers != nil {
		layout.Net = n.peers.cfg.Net
	}
	for i, c := range chosen {
		layout.Nodes = append(layout.Nodes, step.LayoutNode{Name: c.name, Ranks: step.FormatCPUList(ranks[i])})
	}
	return layout, nil
}
