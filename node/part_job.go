package node

import (
	"context"
	"encoding/json"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/step"
)

// The job of a step of several nodes ends on all of them when the whole step has:
// its other steps may run where its own part is over. So its head holds it, and
// lets go of it by "release".

// partRelease ends this node's part of a job, for its head.
func (n *Node) partRelease(_ context.Context, common, _ []byte) (any, error) {
	var in stepRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	j := n.reg.job(in.ID.Job)
	if j == nil || j.Head == "" {
		return partTold{}, nil
	}
	n.releaseJob(j, in.Reason)
	return partTold{true}, nil
}

// releaseJob lets go of a job for its head: what still runs of it is cancelled.
func (n *Node) releaseJob(j *job, reason string) {
	if j.Head != "" {
		n.endAlloc(j, reason)
	}
}

// partHead tells whether this node is the head of the step, which has not ended.
func (n *Node) partHead(_ context.Context, common, _ []byte) (any, error) {
	var in stepRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	if n.heads.get(in.ID) == nil {
		return nil, status.Errorf(codes.NotFound, "no such step %q", in.ID)
	}
	return partTold{true}, nil
}

// headGone is how many times NodeTimeout a head that does not answer is waited
// for when nothing runs here any more.
const headGone = 10

// watchHead ends a job whose head is gone for good, or does not know of it any
// more: it asks now and then, as long as no step of the job runs here. Steps that
// run go on without their head.
func (n *Node) watchHead(j *job) {
	every := n.cfg.Others.NodeTimeout
	missed := 0
	for {
		select {
		case <-j.ended:
			return
		case <-n.stopping:
			return
		case <-time.After(every):
		}
		if n.reg.busy(j) {
			missed = 0
			continue
		}
		answers, err := n.fan(context.Background(), "head", stepRequest{ID: step.ID{Job: j.ID, Step: j.firstStep()}}, partsOf([]string{j.Head}))
		var told partTold
		switch {
		case err == nil && answers[0].err == nil && json.Unmarshal(answers[0].body, &told) == nil:
			missed = 0
		case err == nil && status.Code(answers[0].err) == codes.NotFound:
			n.releaseJob(j, jobEnded)
			return
		default:
			if missed++; missed >= headGone {
				n.log.WithField("job", j.ID).Warnf("node %s, the job's head, has not answered for %v: ending the job here", j.Head, time.Duration(missed)*every)
				n.releaseJob(j, "node "+j.Head+", its head, is gone")
				return
			}
		}
	}
}

// busy tells whether a step of the job is here.
func (r *registry) busy(j *job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.steps {
		if id.Job == j.ID {
			return true
		}
	}
	return false
}

// release lets go of the job on all nodes, where it was made for this step.
func (h *head) release() {
	if h.id.Step != 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), fanTimeout)
	defer cancel()
	answers, err := h.n.fan(ctx, "release", stepRequest{ID: h.id, Reason: jobEnded}, partsOf(h.nodes()))
	if err != nil {
		h.log.Errorf("%v", err)
	}
	for _, a := range answers {
		if a.err != nil {
			h.log.Warnf("cannot end job %d on node %s, which will ask for it: %s", h.id.Job, a.node, status.Convert(a.err).Message())
		}
	}
}
