package node

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
)

// An allocation of several nodes (ADR 0013). The noded that is asked is the job's head, and
// one of its nodes. It asks each of the others for a share, has all of them or none, and
// gives them back together.

// shareReply is what a node has given to the job.
type shareReply struct {
	// Taken is the first free number, where the proposed one is not: then nothing is given.
	Taken *step.ID `json:"taken,omitempty"`
	CPUs  int      `json:"cpus"`
}

// openRequest says that all nodes have given their shares.
type openRequest struct {
	ID       step.ID   `json:"id"`
	User     step.User `json:"user"`
	NodeCPUs []int     `json:"node_cpus"` // by the order of the job's nodes
}

// spans tells whether the job is an allocation of several nodes.
func (j *jobRecord) spans() bool { return j.Origin == step.OriginAlloc && len(j.Nodes) > 1 }

// leadsSpan tells whether it is one, and this node its head.
func (j *jobRecord) leadsSpan() bool { return j.spans() && j.Head == "" }

// withThisNode puts this node among those that the request wants.
func (n *Node) withThisNode(req *step.Request, what string) error {
	self := n.cfg.NodeName
	if slices.Contains(req.WantNodes, self) {
		return nil
	}
	if slices.Contains(req.NotNodes, self) || len(req.WantNodes) > 0 && len(req.WantNodes) >= max(req.NNodes, req.NNodesMax) {
		return api.Errorf(api.InvalidArgument, "nodes: %s has the node among its own whose noded is asked for it, here %s: ask for it on one of those that it is to have", what, self)
	}
	req.WantNodes = append(slices.Clone(req.WantNodes), self)
	return nil
}

// allocNodes is alloc for several nodes; raw is what the client has sent, decoded as req.
func (n *Node) allocNodes(ctx context.Context, caller api.Peer, req *step.Request, raw []byte) (*job, error) {
	if err := n.withThisNode(req, "an allocation"); err != nil {
		return nil, err
	}
	user, err := n.userFor(ctx, caller, req)
	if err != nil {
		return nil, err
	}
	layout, id, err := n.placeStep(ctx, req, nil)
	if err != nil {
		return nil, err
	}
	client, err := openClient(caller)
	if err != nil {
		return nil, err
	}
	h, err := newHolder(caller.PID, client, n.boot)
	if err != nil {
		unix.Close(client)
		return nil, api.NewError(api.FailedPrecondition, err.Error())
	}
	in := &partRequest{
		ID: id, Head: n.cfg.NodeName, By: caller.UID, User: user, Request: raw, Layout: layout, JobNodes: n.jobNodes(req, layout),
	}
	j, cpus, err := n.shares(ctx, in, func() (*job, error) { return n.takeShare(ctx, in, req, user, caller.Root(), h) })
	if err != nil {
		unix.Close(client)
		return nil, err
	}
	n.work.Go(func() { n.holdJob(j, client) })
	n.work.Go(func() { n.watchShares(j) })
	n.log.WithField("job", j.ID).WithField("uid", j.UID).Infof("job of %d nodes allocated for process %d: %s", len(j.Nodes), h.PID, n.cfg.Others.List(j.Nodes))
	if err := n.openAll(ctx, j, openRequest{ID: step.ID{Job: j.ID}, User: user, NodeCPUs: cpus}); err != nil {
		n.endAlloc(j, api.MessageOf(err))
		return nil, err
	}
	return j, nil
}

// shares takes the share of this node, by own, and those of the others, under a number that
// is free on all. It returns the CPUs of each node.
func (n *Node) shares(ctx context.Context, in *partRequest, own func() (*job, error)) (*job, []int, error) {
	for range proposals {
		j, err := own()
		if taken, ok := errors.AsType[errTaken](err); ok {
			in.ID = taken.next
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		cpus, again, err := n.otherShares(ctx, j, in)
		if err == nil && again == nil {
			return j, cpus, nil
		}
		n.endAlloc(j, "another node did not give its share")
		n.awaitTold(ctx, j) // its client may ask again at once
		if werr := n.awaitEnd(ctx, j); werr != nil {
			return nil, nil, werr
		}
		if err != nil {
			return nil, nil, err
		}
		in.ID = *again
	}
	return nil, nil, api.Errorf(api.Aborted, "the nodes %s did not agree on a number for the job within %d tries: try again", n.cfg.Others.List(in.JobNodes), proposals)
}

// otherShares asks the other nodes. again is a number to propose next.
func (n *Node) otherShares(ctx context.Context, j *job, in *partRequest) (cpus []int, again *step.ID, err error) {
	answers, err := n.fan(ctx, "allocate", in, partsOf(n.others(&j.jobRecord)))
	if err != nil {
		return nil, nil, api.NewError(api.Internal, err.Error())
	}
	cpus = make([]int, len(in.JobNodes))
	cpus[slices.Index(in.JobNodes, n.cfg.NodeName)] = len(j.cpus)
	for _, a := range answers {
		var r shareReply
		if a.err == nil {
			if jerr := json.Unmarshal(a.body, &r); jerr != nil {
				a.err = api.Errorf(api.Internal, "its answer cannot be parsed: %v", jerr)
			}
		}
		switch {
		case a.err != nil:
			if err == nil { // the first one is told
				err = api.Errorf(api.CodeOf(a.err), "node %s: %s", a.node, api.MessageOf(a.err))
			}
		case r.Taken != nil:
			if again == nil || again.Job < r.Taken.Job {
				again = r.Taken
			}
		default:
			cpus[slices.Index(in.JobNodes, a.node)] = r.CPUs
		}
	}
	return cpus, again, err
}

// takeShare takes this node's share of the job, and the job's number; the error wraps an
// errTaken where that was given out. h is the client, nil on other nodes than the head.
func (n *Node) takeShare(ctx context.Context, in *partRequest, req *step.Request, user step.User, asRoot bool, h *holder) (*job, error) {
	place, err := n.ownShare(in.Layout, req)
	if err != nil {
		return nil, err
	}
	a, err := n.reg.admit(ctx, place, user.UID, asRoot)
	if err != nil {
		return nil, err
	}
	rec := n.jobOf(n.spec(req, user, a))
	rec.Origin, rec.Nodes, rec.Holder, rec.NoKill = step.OriginAlloc, in.JobNodes, h, req.NoKill
	if h == nil {
		rec.Head = in.Head
	}
	if err := n.store.newJobAs(in.ID, &rec, req.JobControl, nil); err != nil {
		n.reg.abandon(a)
		if _, ok := errors.AsType[errTaken](err); ok {
			return nil, err
		}
		return nil, api.NewError(api.Internal, err.Error())
	}
	n.reg.newJob(a, rec)
	return a.job, nil
}

// ownShare is req as far as this node goes: what is admitted is its share alone.
func (n *Node) ownShare(l *step.Layout, req *step.Request) (*step.Request, error) {
	mine := slices.IndexFunc(l.Nodes, func(l step.LayoutNode) bool { return l.Name == n.cfg.NodeName })
	ranks, err := step.ParseCPUList(l.Nodes[mine].Ranks)
	if err != nil {
		return nil, api.Errorf(api.InvalidArgument, "layout: %v", err)
	}
	place := *req
	place.NTasks = len(ranks)
	return &place, nil
}

// partAllocate gives this node's share to the job of another one's client.
func (n *Node) partAllocate(ctx context.Context, common, _ []byte) (any, error) {
	in, req, p, err := n.readPart(common)
	if err != nil {
		return nil, err
	}
	forAlloc(req)
	if err := n.check(req); err != nil {
		return nil, err
	}
	user, err := n.userFor(ctx, api.Peer{UID: in.By}, req)
	if err == nil {
		err = p.sameUser(user, n.cfg.NodeName)
	}
	if err != nil {
		return nil, err
	}
	j, err := n.takeShare(ctx, in, req, user, in.By == 0, nil)
	if taken, ok := errors.AsType[errTaken](err); ok {
		return shareReply{Taken: &taken.next}, nil
	}
	if err != nil {
		return nil, err
	}
	n.work.Go(func() { n.watchHead(j) })
	n.log.WithField("job", j.ID).WithField("uid", j.UID).Infof("share of a job of %d nodes given to %s", len(j.Nodes), in.Head)
	return shareReply{CPUs: len(j.cpus)}, nil
}

// openAll lets the job take steps, on all of its nodes: where the prolog is due with the
// allocation, when it has ended on all.
func (n *Node) openAll(ctx context.Context, j *job, in openRequest) error {
	limit := time.Duration(0) // as long as the client waits
	if most := n.cfg.Scripts.Timeout; most > 0 {
		limit = most + fanTimeout
	}
	answers, err := n.fanWithin(ctx, limit, "open", in, partsOf(j.Nodes))
	if err != nil {
		return api.NewError(api.Internal, err.Error())
	}
	for _, a := range answers {
		if a.err != nil {
			return api.Errorf(api.CodeOf(a.err), "node %s: %s", a.node, api.MessageOf(a.err))
		}
	}
	return nil
}

// partOpen lets this node's share of a job take steps.
func (n *Node) partOpen(_ context.Context, common, _ []byte) (any, error) {
	var in openRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	j := n.reg.job(in.ID.Job)
	if j == nil || !j.spans() || len(in.NodeCPUs) != len(j.Nodes) || in.User.UID != j.UID {
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", in.ID.Job)
	}
	if err := n.store.setNodeCPUs(j.ID, in.NodeCPUs); err != nil {
		return nil, err
	}
	n.reg.setNodeCPUs(j, in.NodeCPUs)
	return struct{}{}, n.openAlloc(j, in.User)
}

func (r *registry) setNodeCPUs(j *job, cpus []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.NodeCPUs = cpus
}

// nodeCPUs returns what each of a job's nodes has of it, nil where that is not known.
func (r *registry) nodeCPUs(j *job) []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return j.NodeCPUs
}
