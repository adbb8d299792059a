package node

import (
	"context"
	"fmt"
	"time"

	"stepd/api"
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
	switch {
	case j == nil:
		return partTold{}, nil
	case j.Head != "":
		n.releaseJob(j, in.Reason)
	case j.spans(): // another node has ended its share
		n.endAlloc(j, in.Reason)
	default:
		return partTold{}, nil
	}
	return partTold{true}, nil
}

// releaseJob lets go of a job for its head: what still runs of it is cancelled.
func (n *Node) releaseJob(j *job, reason string) {
	if j.Head != "" {
		n.endShare(j, reason)
	}
}

// partHead tells whether this node is the head of the step, which has not ended.
func (n *Node) partHead(_ context.Context, common, _ []byte) (any, error) {
	var in stepRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	if n.heads.get(in.ID) == nil {
		return nil, api.Errorf(api.NotFound, "no such step %q", in.ID)
	}
	return partTold{true}, nil
}

// watchHead ends a job whose head is gone for good, or does not know of it any
// more. As long as the head waits for a part here it is there; else it is asked, often
// while steps run that nobody would end, and seldom for what is only held.
func (n *Node) watchHead(j *job) {
	limit := n.cfg.Others.NodeTimeout
	var gone, heard time.Time
	for {
		select {
		case <-j.ended:
			return
		case <-n.stopping:
			return
		case <-time.After(limit / 4):
		}
		waits, busy := n.reg.headWaits(j, limit/2)
		if waits {
			gone, heard = time.Time{}, time.Now()
			continue
		}
		if !busy && gone.IsZero() && time.Since(heard) < limit {
			continue
		}
		switch err := n.askHead(j); {
		case err == nil:
			gone, heard = time.Time{}, time.Now()
		case api.CodeOf(err) == api.NotFound && !busy:
			n.releaseJob(j, jobEnded)
			return
		case gone.IsZero():
			gone = time.Now()
			n.log.WithField("job", j.ID).Infof("node %s, the job's head: %s", j.Head, api.MessageOf(err))
		case time.Since(gone) >= limit:
			why := fmt.Sprintf("node %q, the job's head, has not answered for %v (NodeTimeout): %s", j.Head, limit, api.MessageOf(err))
			if api.CodeOf(err) == api.NotFound { // it may have been about to reserve other nodes
				why = fmt.Sprintf("node %q, the job's head, does not know it", j.Head)
			}
			n.log.WithField("job", j.ID).Warnf("ending the job here: %s", why)
			n.releaseJob(j, why)
			return
		}
	}
}

// askHead asks the head whether it knows the job.
func (n *Node) askHead(j *job) error {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.Others.NodeTimeout)
	defer cancel()
	verb := "head"
	if j.spans() {
		verb = "hold"
	}
	answers, err := n.fan(ctx, verb, stepRequest{ID: step.ID{Job: j.ID, Step: j.firstStep()}}, partsOf([]string{j.Head}))
	if err != nil {
		return err
	}
	return answers[0].err
}

// headWaits tells whether the job's head waits for a part here, or has given a sign of
// life within calm, and whether a step of it is here at all.
func (r *registry) headWaits(j *job, calm time.Duration) (waits, busy bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.steps {
		busy = busy || id.Job == j.ID
	}
	return j.waits > 0 || time.Since(j.heard) < calm, busy
}

// headCame counts a call in which the job's head waits, by 1 and -1.
func (r *registry) headCame(j *job, by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.waits += by
}

// release lets go of the job on all nodes, where it was made for this step.
func (h *head) release() {
	if h.id.Step != 0 {
		return
	}
	if j := h.n.reg.job(h.id.Job); j != nil && j.spans() {
		return // its client's
	}
	ctx, cancel := context.WithTimeout(context.Background(), fanTimeout)
	defer cancel()
	answers, err := h.n.fan(ctx, "release", stepRequest{ID: h.id, Reason: jobEnded}, partsOf(h.nodes()))
	if err != nil {
		h.log.Errorf("%v", err)
	}
	for _, a := range answers {
		if a.err != nil {
			h.log.Warnf("cannot end job %d on node %s, which will ask for it: %s", h.id.Job, a.node, api.MessageOf(a.err))
		}
	}
}
