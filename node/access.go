package node

import (
	"context"
	"errors"

	"stepd/api"
	"stepd/node/state"
	"stepd/step"
)

// caller is the client whose request ctx is of. Without peer credentials none is served.
func caller(ctx context.Context) (api.Peer, error) {
	info, ok := ctx.Value(callKey{}).(callInfo)
	if !ok {
		return api.Peer{}, api.NewError(api.Unauthenticated, "internal error: a request without a peer")
	}
	return info.peer, nil
}

// mayAct: users act on own steps, root on all.
func mayAct(p api.Peer, uid uint32) bool { return p.Root() || p.UID == uid }

// own resolves a step, or all steps of a job, that the caller may act on.
func (s *service) own(ctx context.Context, ref api.StepRef) (recs []*step.Record, err error) {
	ids, err := s.ownIDs(ctx, ref)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		rec, err := s.ownStep(ctx, id)
		if err != nil {
			return nil, err
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

// ownIDs is own of the steps' numbers. All steps of a job are its user's.
func (s *service) ownIDs(ctx context.Context, ref api.StepRef) ([]step.ID, error) {
	p, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	if j := s.n.reg.job(ref.JobID); ref.StepID == nil && j != nil && !mayAct(p, j.UID) { // it may have no steps
		return nil, errDenied
	}
	ids, err := s.n.idsOf(ref)
	if err == nil && len(ids) > 0 {
		_, err = s.ownStep(ctx, ids[0])
	}
	return ids, err
}

// ownStep is the record of a step that the caller may act on.
func (s *service) ownStep(ctx context.Context, id step.ID) (*step.Record, error) {
	p, err := caller(ctx)
	if err != nil {
		return nil, err
	}
	rec, err := s.n.findStep(id)
	if err == nil && !mayAct(p, rec.UID) {
		return nil, errDenied
	}
	return rec, err
}

// idsOf are the steps that ref names: none only of a job that runs.
func (n *Node) idsOf(ref api.StepRef) ([]step.ID, error) {
	if ref.StepID != nil {
		return []step.ID{{Job: ref.JobID, Step: *ref.StepID}}, nil
	}
	var ids []step.ID
	if ref.JobID != 0 {
		ids = n.store.IDs(ref.JobID)
	}
	if len(ids) == 0 && n.reg.job(ref.JobID) == nil {
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", ref.JobID)
	}
	return ids, nil
}

// allIDs are the steps that have not ended, with all the ended ones as well.
func (n *Node) allIDs(all bool) (ids []step.ID) {
	if all {
		return n.store.IDs(0)
	}
	for _, f := range n.reg.followers() {
		ids = append(ids, f.id)
	}
	return ids
}

// findStep returns the record of a step: of one that runs as it is now, since the store has
// its beginning.
func (n *Node) findStep(id step.ID) (*step.Record, error) {
	if f := n.reg.follower(id); f != nil {
		return f.record(), nil
	}
	rec, err := n.store.Step(id)
	if errors.Is(err, state.ErrUnknown) {
		return nil, api.Errorf(api.NotFound, "no such step %q", id)
	}
	if err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	return rec, nil
}

// jobSteps returns the steps of a job, running ones as they are now.
func (n *Node) jobSteps(job uint32) (recs []*step.Record, err error) {
	for _, id := range n.store.IDs(job) {
		rec, err := n.findStep(id)
		switch {
		case api.CodeOf(err) == api.NotFound: // it was forgotten meanwhile
		case err != nil:
			return nil, err
		default:
			recs = append(recs, rec)
		}
	}
	return recs, nil
}
