package node

import (
	"context"
	"strings"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/step"
)

// What the head of a step asks of a part that is there, and orders it to do.

// stepRequest is about the part of a step.
type stepRequest struct {
	ID     step.ID `json:"id"`
	Signal int     `json:"signal,omitempty"`
	Scope  string  `json:"scope,omitempty"`
	Reason string  `json:"reason,omitempty"`
	By     uint32  `json:"by,omitempty"`
}

// partOf reads a stepRequest and finds the part. f is nil where it does not run.
func (n *Node) partOf(common []byte) (in stepRequest, f *follower, err error) {
	if err = decodePart(common, &in); err != nil {
		return in, nil, err
	}
	return in, n.reg.follower(in.ID), nil
}

// partRecord is the record of this node's part, running or ended.
func (n *Node) partRecord(id step.ID) (*step.Record, error) {
	if f := n.reg.follower(id); f != nil {
		return f.record(), nil
	}
	rec, err := n.store.step(id)
	if err != nil {
		return nil, api.Errorf(api.NotFound, "no such step %q", id)
	}
	return rec, nil
}

func (n *Node) partShow(_ context.Context, common, _ []byte) (any, error) {
	var in stepRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	return n.partRecord(in.ID)
}

func (n *Node) partStat(ctx context.Context, common, _ []byte) (any, error) {
	in, f, err := n.partOf(common)
	if err != nil {
		return nil, err
	}
	if f == nil || !f.hasStepd() || f.record().State.Final() {
		return n.partRecord(in.ID)
	}
	return f.stat(ctx)
}

func (n *Node) partSignal(ctx context.Context, common, _ []byte) (any, error) {
	in, f, err := n.partOf(common)
	if err != nil {
		return nil, err
	}
	return told(f, func() error {
		return f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeSignal, Signal: in.Signal, Scope: in.Scope})
	})
}

func (n *Node) partCancel(ctx context.Context, common, _ []byte) (any, error) {
	in, f, err := n.partOf(common)
	if err != nil {
		return nil, err
	}
	return told(f, func() error { return f.cancel(ctx, in.Reason) })
}

func (n *Node) partSuspend(ctx context.Context, common, _ []byte) (any, error) {
	in, f, err := n.partOf(common)
	if err != nil {
		return nil, err
	}
	return told(f, func() error { return f.suspend(ctx, in.By) })
}

func (n *Node) partResume(ctx context.Context, common, _ []byte) (any, error) {
	in, f, err := n.partOf(common)
	if err != nil {
		return nil, err
	}
	return told(f, func() error { return f.unsuspend(ctx, in.By) })
}

// partTold says whether there was a part to tell.
type partTold struct {
	Told bool `json:"told"`
}

// told passes a request on to the part, and forgives one whose tasks have ended: those
// of other nodes may run.
func told(f *follower, pass func() error) (any, error) {
	if f == nil {
		return partTold{}, nil
	}
	if err := pass(); err != nil {
		select {
		case <-f.ended:
			return partTold{}, nil
		default:
		}
		if state := f.record().State; state == step.Completing || state.Final() || saysOver(err) {
			return partTold{}, nil
		}
		return nil, api.NewError(api.FailedPrecondition, err.Error())
	}
	return partTold{true}, nil
}

// saysOver tells whether stepd has refused a request since the step's tasks have ended:
// it knows that before noded does.
func saysOver(err error) bool {
	text := api.MessageOf(err)
	_, state, named := strings.Cut(text, ": the step is ")
	return strings.HasSuffix(text, ": it is ending") || named && (state == string(step.Completing) || isFinal(step.State(state)))
}
