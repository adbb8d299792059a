package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"stepd/api"
	"stepd/step"
)

// The end of an allocation of several nodes: whoever ends its share tells the head, and the
// head tells all. Who is not reached finds out by "hold", which head and nodes ask each other.

// others are the nodes that are told of the job's end from here: of the head all others, of
// another node the head; nil for any other job.
func (n *Node) others(j *jobRecord) []string {
	switch {
	case !j.spans():
		return nil
	case j.Head != "":
		return []string{j.Head}
	}
	return slices.DeleteFunc(slices.Clone(j.Nodes), func(name string) bool { return name == n.cfg.NodeName })
}

// tellEnd tells the job's other nodes, once, that its end has begun here.
func (n *Node) tellEnd(j *job, reason string) {
	if names := n.others(&j.jobRecord); names != nil {
		j.tell.Do(func() { n.tellNodes(j, names, reason) })
	}
}

func (n *Node) tellNodes(j *job, names []string, reason string) {
	if j.Head != "" {
		reason = fmt.Sprintf("node %s: %s", n.cfg.NodeName, reason)
	}
	n.work.Go(func() {
		defer close(j.told)
		ctx, cancel := n.untilStopped()
		defer cancel()
		answers, err := n.fan(ctx, "release", stepRequest{ID: step.ID{Job: j.ID}, Reason: reason}, partsOf(names))
		if err != nil {
			n.log.WithField("job", j.ID).Errorf("%v", err)
		}
		for _, a := range answers {
			if a.err != nil {
				n.log.WithField("job", j.ID).Warnf("cannot end the job on node %s, which will ask for it: %s", a.node, api.MessageOf(a.err))
			}
		}
	})
}

// awaitTold returns when the other nodes have heard of the job's end, or cannot.
func (n *Node) awaitTold(ctx context.Context, j *job) {
	if !j.leadsSpan() {
		return
	}
	select {
	case <-j.told:
	case <-n.stopping:
	case <-ctx.Done():
	}
}

// partHold tells whether this node still has the job. That its head asks is a sign of life.
func (n *Node) partHold(_ context.Context, common, _ []byte) (any, error) {
	var in stepRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	j := n.reg.job(in.ID.Job)
	if j == nil || !j.spans() || !n.reg.headHeard(j) {
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", in.ID.Job)
	}
	return partTold{true}, nil
}

// headHeard notes a sign of life of the job's head; false is that the job's end has begun.
func (r *registry) headHeard(j *job) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.heard = time.Now()
	return !j.shut
}

// watchShares ends the job when one of its nodes is lost, or has its share no more. With
// NoKill it says so, and goes on with the others.
func (n *Node) watchShares(j *job) {
	limit := n.cfg.Others.NodeTimeout
	names := n.others(&j.jobRecord)
	gone := make(map[string]time.Time)
	for len(names) > 0 {
		select {
		case <-j.ended:
			return
		case <-n.stopping:
			return
		case <-time.After(limit / 4):
		}
		ctx, cancel := n.untilStopped()
		answers, err := n.fanWithin(ctx, limit, "hold", stepRequest{ID: step.ID{Job: j.ID}}, partsOf(names))
		cancel()
		if err != nil {
			n.log.WithField("job", j.ID).Errorf("%v", err)
			continue
		}
		for _, a := range answers {
			why := lostShare(a, gone, limit)
			if why == "" {
				continue
			}
			if !j.NoKill {
				n.endAlloc(j, why)
				return
			}
			n.log.WithField("job", j.ID).Warnf("going on without node %s (--no-kill): %s", a.node, why)
			names = slices.DeleteFunc(names, func(name string) bool { return name == a.node })
		}
	}
}

// lostShare says why a node's share counts as lost, "" if it does not. gone are the nodes
// that have not answered, and since when.
func lostShare(a fanAnswer, gone map[string]time.Time, limit time.Duration) string {
	switch {
	case a.err == nil:
		delete(gone, a.node)
	case api.CodeOf(a.err) == api.NotFound:
		return fmt.Sprintf("node %q has its share of the job no more", a.node)
	case gone[a.node].IsZero():
		gone[a.node] = time.Now()
	case time.Since(gone[a.node]) >= limit:
		return fmt.Sprintf("node %q is lost: its noded has not answered for %v (NodeTimeout): %s", a.node, limit, api.MessageOf(a.err))
	}
	return ""
}
