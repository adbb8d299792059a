package node

import (
	"context"
	"errors"

	"stepd/api"
	"stepd/node/state"
	"stepd/step"
)

// The interactive step of an allocation (SLURM_INTERACTIVE_STEP) is its user's shell on
// the node: it may use all that the job has, and holds none of it from other steps.

func interactiveID(j *job) step.ID { return step.ID{Job: j.ID, Step: step.InteractiveStep} }

// reserveInteractive is reserveFor of that step.
func (n *Node) reserveInteractive(ctx context.Context, caller api.Peer, in order) (*follower, *step.Spec, error) {
	j := n.reg.job(*in.req.Job)
	switch {
	case j == nil:
		return nil, nil, api.Errorf(api.NotFound, "no such job \"%d\"", *in.req.Job)
	case !caller.MayAct(j.UID):
		return nil, nil, api.ErrDenied
	case j.Origin != step.OriginAlloc:
		return nil, nil, api.Errorf(api.FailedPrecondition, "interactive: job %d was not made by alloc", j.ID)
	}
	in.want, in.know = interactiveID(j), j.giveAll
	switch _, err := n.store.Step(in.want); {
	case err == nil:
		return nil, nil, interactiveHad(state.HadError{ID: in.want})
	case !errors.Is(err, state.ErrUnknown):
		return nil, nil, api.NewError(api.Internal, err.Error())
	}
	f, spec, err := n.reserveFor(ctx, caller, in)
	if had, ok := errors.AsType[state.HadError](err); ok { // of two at once
		return nil, nil, interactiveHad(had)
	}
	if err != nil {
		return nil, nil, err
	}
	n.reg.takeNothing(f)
	return f, spec, nil
}

// interactiveHad is the answer where the job has had its interactive step.
func interactiveHad(had state.HadError) error {
	return api.Errorf(api.FailedPrecondition, "interactive: %v", had)
}

// endWithShell ends an allocation whose client is gone. Its interactive step goes on, as
// every step with a terminal does, and the job goes on with it.
func (n *Node) endWithShell(j *job, reason string) {
	f := n.reg.follower(interactiveID(j))
	if f == nil {
		n.endAlloc(j, reason)
		return
	}
	n.log.WithField("job", j.ID).Infof("%s: the job goes on until step %s ends", reason, f.id.Name())
	over, stop := j.timeOver()
	defer stop()
	select {
	case <-f.ended:
		n.endAlloc(j, "its interactive step has ended")
	case <-over:
		n.endAlloc(j, errTime.Error())
	case <-j.ended:
	case <-n.stopping: // the next noded finds the step again
	}
}
