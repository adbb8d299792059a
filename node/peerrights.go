package node

import (
	"context"
	"slices"
	"strings"

	"stepd/api"
	"stepd/step"
)

// What another node may ask for: it acts on a step that it is the head of or has a
// part of, and on no other. That holds for what it wants passed on as well: who passes
// a request on speaks in its own name, and is itself one of the step's.

// errNotYours refuses a node that has nothing to do with the step.
func errNotYours(peer, what string) error {
	return api.Errorf(api.PermissionDenied, "node %s has no part of %s", peer, what)
}

// mayFan refuses a request that peer may not make here, or that this node does not
// pass on for it.
func (n *Node) mayFan(peer string, in *api.FanRequest) error {
	var (
		known bool
		err   error
	)
	switch in.GetVerb() {
	case "probe":
		known, err = n.mayProbe(peer, in.GetCommon())
	case "reserve", "dryrun":
		known, err = true, n.mayReserve(peer, in.GetCommon())
	case "launch", "show", "stat", "signal", "cancel", "suspend", "resume", "head", "watch":
		known, err = n.mayReach(peer, in.GetCommon())
	case "allocate":
		known, err = true, n.mayReserve(peer, in.GetCommon())
	case "release", "open", "hold":
		known, err = n.mayRelease(peer, in.GetCommon())
	case "anchor":
		known, err = n.mayAnchor(peer, in.GetCommon())
	default:
		return nil // an unknown one, which every node refuses by itself
	}
	if err != nil {
		return err
	}
	for _, p := range in.GetParts() {
		if p.GetNode() != n.cfg.NodeName && !known {
			return api.Errorf(api.FailedPrecondition, "node %s passes on what concerns its own steps, and it does not know this one", n.cfg.NodeName)
		}
	}
	return nil
}

// mayProbe: what is free is told to any node, what a job has to its nodes.
func (n *Node) mayProbe(peer string, common []byte) (known bool, err error) {
	var in probeRequest
	if err := decodePart(common, &in); err != nil {
		return false, err
	}
	if in.Job == nil {
		return true, nil
	}
	return n.jobOfPeer(peer, *in.Job)
}

// mayReserve: a step is reserved by its head, or passed on by one of its nodes.
func (n *Node) mayReserve(peer string, common []byte) error {
	var in struct {
		ID     step.ID      `json:"id"`
		Head   string       `json:"head"`
		Layout *step.Layout `json:"layout"`
	}
	if err := decodePart(common, &in); err != nil {
		return err
	}
	of := func(name string) bool {
		return in.Head == name || in.Layout != nil && slices.ContainsFunc(in.Layout.Nodes, func(l step.LayoutNode) bool { return l.Name == name })
	}
	if !of(peer) {
		return errNotYours(peer, "step "+in.ID.String())
	}
	return nil
}

// mayReach: the part of a step is its head's and its nodes'.
func (n *Node) mayReach(peer string, common []byte) (known bool, err error) {
	var in stepRequest
	if err := decodePart(common, &in); err != nil {
		return false, err
	}
	return n.stepOfPeer(peer, in.ID)
}

// mayAsk refuses a node that asks for the part of a step of which it has none.
func (s *peerService) mayAsk(ctx context.Context, job, number uint32) error {
	peer, err := api.NodePeerOf(ctx)
	if err != nil {
		return api.NewError(api.Unauthenticated, err.Error())
	}
	_, err = s.n.stepOfPeer(peer.Name, step.ID{Job: job, Step: number})
	return err
}

// stepOfPeer refuses a node that has nothing to do with the step; known is whether
// there is one.
func (n *Node) stepOfPeer(peer string, id step.ID) (known bool, err error) {
	var rec *step.Record
	if f := n.reg.follower(id); f != nil {
		rec = f.record()
	} else if h := n.heads.get(id); h != nil {
		rec = h.record()
	} else if rec, err = n.store.step(id); err != nil {
		return false, nil // the request says so
	}
	if peer == rec.Head || slices.Contains(rec.Nodes, peer) || slices.Contains(n.expand(rec.Peers), peer) {
		return true, nil
	}
	return true, errNotYours(peer, "step "+id.String())
}

func (n *Node) expand(list string) []string {
	if list == "" {
		return nil
	}
	if n.cfg.Others == nil || n.cfg.Others.Expand == nil {
		return strings.Split(list, ",")
	}
	return n.cfg.Others.Expand(list)
}

// jobOfPeer is stepOfPeer for a job.
func (n *Node) jobOfPeer(peer string, id uint32) (known bool, err error) {
	j := n.reg.job(id)
	if j == nil {
		return false, nil
	}
	if peer != j.Head && !slices.Contains(j.Nodes, peer) {
		return true, api.Errorf(api.PermissionDenied, "node %s has no part of job %d", peer, id)
	}
	return true, nil
}

func (n *Node) mayAnchor(peer string, common []byte) (known bool, err error) {
	var in struct {
		Job uint32 `json:"job"`
	}
	if err := decodePart(common, &in); err != nil {
		return false, err
	}
	return n.jobOfPeer(peer, in.Job)
}

func (n *Node) mayRelease(peer string, common []byte) (known bool, err error) {
	var in stepRequest
	if err := decodePart(common, &in); err != nil {
		return false, err
	}
	return n.jobOfPeer(peer, in.ID.Job)
}
