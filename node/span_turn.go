package node

import (
	"context"
	"fmt"
	"time"

	"stepd/api"
	"stepd/step"
)

// turnPause is how long a step of several nodes that waits for its share pauses at most
// before it asks the nodes again: those tell nobody when something is released.
const turnPause = 500 * time.Millisecond

// reserveInTurn is reserveHead for a client. In a job whose steps have their CPUs for
// themselves the steps of several nodes are reserved one after the other, so that no two
// wait for each other; one that waits for its share does so before the next is looked at.
func (n *Node) reserveInTurn(ctx context.Context, caller api.Peer, req *step.Request, in *api.RunRequest, state step.State) (*head, error) {
	raw := in.GetRequest()
	var j *job
	if req.Job != nil {
		j = n.reg.job(*req.Job)
	}
	if j == nil || !j.exclusive() || req.Overlap || !mayAct(caller, j.UID) {
		return n.reserveHead(ctx, caller, req, raw, state, nil)
	}
	if err := n.reg.reserve(caller.UID, len(raw)); err != nil { // it is held while it waits
		return nil, err
	}
	size := len(raw)
	defer func() { n.reg.unreserve(caller.UID, size) }()
	soon := time.NewTimer(admitGrace)
	defer soon.Stop()
	late := soon.C
	if req.ImmediateS != nil && *req.ImmediateS != 0 {
		late = nil // as long as ctx
	}
	select {
	case j.turn <- struct{}{}:
	case <-late:
		return nil, waitsFor(fmt.Sprintf("another step of job %d waits before it; --overlap shares CPUs with other steps", j.ID), fmt.Sprintf("its turn in job %d", j.ID))
	case <-ctx.Done():
		return nil, api.ContextError(ctx.Err())
	}
	defer func() { <-j.turn }()
	for pause := chooseAgain; ; pause = min(2*pause, turnPause) {
		freed := n.reg.freedNow()
		again := *req // each try is one of its own, and counts the request itself
		n.reg.unreserve(caller.UID, size)
		size = 0
		h, err := n.reserveHead(ctx, caller, &again, raw, state, nil)
		if !isBusy(err) {
			return h, err
		}
		if err := n.reg.reserve(caller.UID, len(raw)); err != nil {
			return nil, err
		}
		size = len(raw)
		if n.reg.isShut(j) {
			return nil, api.Errorf(api.NotFound, "no such job \"%d\"", j.ID)
		}
		select {
		case <-time.After(pause):
		case <-freed:
		case <-late:
			return nil, err
		case <-ctx.Done():
			return nil, api.ContextError(ctx.Err())
		}
	}
}

// isShut tells whether the job's end has begun.
func (r *registry) isShut(j *job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return j.shut
}

// freedNow is closed when something was released since.
func (r *registry) freedNow() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.freed
}
