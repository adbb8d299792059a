package node

import (
	"context"
	"encoding/json"
	"fmt"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/step"
)

// A job of several nodes keeps what its steps share on one of them, its anchor: the
// published names, and the numbers of the steps that its tasks spawn, so that no
// two have the same.

// anchor is the node that keeps it, "" where that is this one.
func (n *Node) anchor(j *job) string {
	if len(j.Nodes) == 0 || j.Nodes[0] == n.cfg.NodeName {
		return ""
	}
	return j.Nodes[0]
}

// askNumber asks for the number of a further step: least or beyond.
const askNumber = "number"

// anchorRequest is what another node of the job asks its anchor.
type anchorRequest struct {
	Job   uint32      `json:"job"`
	UID   uint32      `json:"uid"` // the job's
	Ask   stepapi.Ask `json:"ask"`
	Least uint32      `json:"least,omitempty"`
}

// askAnchor asks the job's anchor.
func (n *Node) askAnchor(ctx context.Context, at string, in anchorRequest) (*stepapi.Answer, error) {
	replies, err := n.fan(ctx, "anchor", in, []*api.FanPart{{Node: at}})
	if err != nil {
		return nil, err
	}
	if err := replies[0].err; err != nil {
		return nil, fmt.Errorf("cannot ask node %q, which keeps what the nodes of job %d share: %s", at, in.Job, api.MessageOf(err))
	}
	a := new(stepapi.Answer)
	if err := json.Unmarshal(replies[0].body, a); err != nil {
		return nil, fmt.Errorf("cannot parse the answer of node %q: %w", at, err)
	}
	return a, nil
}

// partAnchor answers another node of a job whose anchor this node is.
func (n *Node) partAnchor(ctx context.Context, common, _ []byte) (any, error) {
	var in anchorRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	j := n.reg.job(in.Job)
	switch {
	case j == nil:
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", in.Job)
	case j.UID != in.UID:
		return nil, api.Errorf(api.PermissionDenied, "job %d is uid %d's, not %d's", j.ID, j.UID, in.UID)
	case n.anchor(j) != "":
		return nil, api.Errorf(api.FailedPrecondition, "job %d has its anchor on %s", j.ID, n.anchor(j))
	}
	if in.Ask.Do == askNumber {
		id, err := n.store.takeStep(j.ID, in.Least)
		if err != nil {
			return nil, api.NewError(api.ResourceExhausted, err.Error())
		}
		return &stepapi.Answer{ID: &id}, nil
	}
	a, err := n.names(ctx, j, &in.Ask)
	if err != nil {
		return nil, api.NewError(api.FailedPrecondition, err.Error())
	}
	return a, nil
}

// numberFor is the number of a step that j's tasks spawn here, zero for the next
// of this node's.
func (n *Node) numberFor(ctx context.Context, j *job, least uint32) (step.ID, error) {
	at := n.anchor(j)
	if at == "" {
		return step.ID{}, nil
	}
	a, err := n.askAnchor(ctx, at, anchorRequest{Job: j.ID, UID: j.UID, Ask: stepapi.Ask{Do: askNumber}, Least: least})
	if err != nil {
		return step.ID{}, err
	}
	if a.ID == nil || a.ID.Job != j.ID {
		return step.ID{}, fmt.Errorf("internal error: node %q has no number for a step of job %d", at, j.ID)
	}
	return *a.ID, nil
}

// freeNumber is a number of a further step of j that no other step of it has, on
// no node: least or beyond. It is for a step without a part on the anchor.
func (n *Node) freeNumber(ctx context.Context, j *job, least uint32) (step.ID, error) {
	if n.anchor(j) == "" {
		return n.store.takeStep(j.ID, least)
	}
	return n.numberFor(ctx, j, least)
}
