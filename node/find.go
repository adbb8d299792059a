package node

import (
	"context"
	"errors"

	"stepd/api"
	"stepd/step"
)

// caller is who asks. Without peer credentials nobody is served.
func caller(ctx context.Context) (api.Peer, error) {
	p, err := api.PeerOf(ctx)
	if err != nil {
		return api.Peer{}, api.NewError(api.Unauthenticated, err.Error())
	}
	if p.Refusal != "" {
		return api.Peer{}, api.NewError(api.ResourceExhausted, p.Refusal)
	}
	return p, nil
}

// mayAct: users act on own steps, root on all.
func mayAct(p api.Peer, uid uint32) bool { return p.Root() || p.UID == uid }

// own resolves a step, or all steps of a job, that the caller may act on.
func (s *service) own(ctx context.Context, ref *api.StepRef) ([]*step.Record, error) {
	p, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if ref != nil && ref.StepId == nil {
		// An allocation may have no steps.
		if j := s.n.reg.job(ref.JobId); j != nil && !mayAct(p, j.UID) {
			return nil, errDenied
		}
	}
	recs, err := s.n.find(ref)
	if err != nil {
		return nil, err
	}
	for _, rec := range recs {
		if !mayAct(p, rec.UID) {
			return nil, errDenied
		}
	}
	return recs, nil
}

// find returns the records that ref names: none only of a job that runs.
func (n *Node) find(ref *api.StepRef) ([]*step.Record, error) {
	job := ref.GetJobId()
	if ref == nil || ref.StepId == nil {
		recs, err := n.jobSteps(job)
		if err != nil {
			return nil, api.NewError(api.Internal, err.Error())
		}
		if len(recs) == 0 && n.reg.job(job) == nil {
			return nil, api.Errorf(api.NotFound, "no such job \"%d\"", job)
		}
		return recs, nil
	}
	id := step.ID{Job: job, Step: ref.GetStepId()}
	if f := n.reg.follower(id); f != nil {
		return []*step.Record{f.record()}, nil
	}
	rec, err := n.store.step(id)
	if errors.Is(err, errUnknown) {
		return nil, api.Errorf(api.NotFound, "no such step %q", id)
	}
	if err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	return []*step.Record{rec}, nil
}

// jobSteps returns the steps of a job, running ones as they are now.
func (n *Node) jobSteps(job uint32) ([]*step.Record, error) {
	if job == 0 {
		return nil, nil
	}
	recs, err := n.store.steps(job)
	if err != nil {
		return nil, err
	}
	return n.fresh(recs), nil
}

func (n *Node) list(all bool) ([]*step.Record, error) {
	if all {
		recs, err := n.store.steps(0)
		if err != nil {
			return nil, err
		}
		return n.fresh(recs), nil
	}
	var recs []*step.Record
	for _, f := range n.reg.followers() {
		if rec := f.record(); !rec.State.Final() {
			recs = append(recs, rec)
		}
	}
	return recs, nil
}

// fresh replaces stored records of running steps: the store has their beginning.
func (n *Node) fresh(recs []*step.Record) []*step.Record {
	for i, rec := range recs {
		if f := n.reg.follower(rec.ID); f != nil {
			recs[i] = f.record()
		}
	}
	return recs
}
