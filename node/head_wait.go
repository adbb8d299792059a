package node

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

// follow waits for all parts, each on a connection of its own so that a lost node
// is noticed, and concludes the step.
func (h *head) follow() {
	h.n.work.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { // ends with ctx, which ends with this function
			select {
			case <-h.n.stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
		var parts sync.WaitGroup
		for i := range h.layout.Nodes {
			parts.Go(func() { h.waitPart(ctx, i) })
		}
		parts.Wait()
		if ctx.Err() != nil {
			return // noded is stopping: the next one waits again
		}
		h.conclude()
	})
}

// waitPart waits for the end of one node's part. What it was that ended it is
// everybody's end where tasks of it never ran or were lost: on one node, too, a
// step does not go on then.
func (h *head) waitPart(ctx context.Context, i int) {
	name := h.layout.Nodes[i].Name
	rec, err := h.awaitPart(ctx, name)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		rec = h.lostPart(i, fmt.Sprintf("node %q is lost: %v", name, err))
	}
	h.mu.Lock()
	h.parts[i] = rec
	h.mu.Unlock()
	h.log.Debugf("the part of node %s has ended: %s %s", name, rec.State, rec.Reason)
	switch why := brokenPart(rec); {
	case why == "" || rec.EndedBy != nil:
	case h.record().NoKill && step.LostPart(rec):
		h.log.Warnf("going on without node %s (--no-kill): %s", name, why)
	default:
		if err == nil {
			why = fmt.Sprintf("node %q: %s", name, why)
		}
		h.endAll(why)
	}
}

// brokenPart says why a part has ended without its tasks' own ends, "" if it has
// not.
func brokenPart(rec *step.Record) string {
	if rec.State == step.Completed {
		return ""
	}
	for i := range rec.Tasks {
		if t := &rec.Tasks[i]; t.Status == nil && t.State != step.TaskFailed || t.State == step.TaskFailed && t.Stage == "" {
			return rec.Reason
		}
	}
	return ""
}

// lostPart is the record of a part that nobody can tell of.
func (h *head) lostPart(i int, reason string) *step.Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	rec := &step.Record{ID: h.id, Node: h.layout.Nodes[i].Name, State: step.NodeFail}
	for _, t := range h.rec.Tasks {
		if t.Node == rec.Node {
			rec.Tasks = append(rec.Tasks, t)
		}
	}
	deadRecord(rec, reason, step.NodeFail, time.Now())
	return rec
}

// awaitPart returns the final record of a node's part. A noded that is gone is
// asked again for NodeTimeout: it may be restarted, and the step goes on meanwhile.
func (h *head) awaitPart(ctx context.Context, name string) (*step.Record, error) {
	if name == h.n.cfg.NodeName {
		return h.n.waitPart(ctx, h.id)
	}
	var gone time.Time
	for {
		c, err := h.n.peers.client(name)
		if err != nil {
			return nil, err
		}
		reply, err := c.WaitPart(ctx, &api.PartRef{JobId: h.id.Job, StepId: h.id.Step})
		if err == nil {
			rec := new(step.Record)
			if err := json.Unmarshal(reply.GetStep(), rec); err != nil {
				return nil, fmt.Errorf("its record cannot be parsed: %w", err)
			}
			return rec, nil
		}
		if api.CodeOf(err) != api.Unavailable {
			return nil, status.Convert(err).Err() // keeps the code and the words
		}
		h.n.peers.failed(name)
		if gone.IsZero() {
			gone = time.Now()
			h.log.Warnf("node %s does not answer: %s", name, api.PeerReason(err))
		}
		limit := h.n.cfg.Others.NodeTimeout
		if time.Since(gone) >= limit {
			return nil, fmt.Errorf("its noded has not answered for %v: %s", limit, api.PeerReason(err))
		}
		if h.knownLost(name) {
			return nil, fmt.Errorf("%s", api.PeerReason(err))
		}
		// Nothing tells when a port is served again but trying it.
		select {
		case <-time.After(min(time.Second, limit/4)):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if answers, err := h.n.fan(ctx, "show", stepRequest{ID: h.id}, partsOf([]string{name})); err == nil && answers[0].err == nil {
			gone = time.Time{} // it is back
		}
	}
}

// knownLost tells whether the step's other stepds have said that the node is lost:
// then its noded is not waited for any longer.
func (h *head) knownLost(name string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.parts {
		if p == nil {
			continue
		}
		if p.EndedBy != nil && p.EndedBy.Why == step.EndLost && p.EndedBy.Name == name {
			return true
		}
		if slices.ContainsFunc(p.LostNodes, func(l step.LostNode) bool { return l.Node == name }) {
			return h.othersEnded(name)
		}
	}
	return false
}

// othersEnded tells whether all parts but one have. The caller holds mu.
func (h *head) othersEnded(name string) bool {
	for i, p := range h.parts {
		if h.layout.Nodes[i].Name != name && (p == nil || !p.State.Final()) {
			return false
		}
	}
	return true
}

// endAll ends all parts because of one, once.
func (h *head) endAll(why string) {
	h.mu.Lock()
	first := h.ending == ""
	if first {
		h.ending = why
	}
	h.mu.Unlock()
	if first {
		h.log.Warnf("ending the step: %s", why)
		h.n.work.Go(func() { h.cancelParts(why) })
	}
}

// conclude makes the record of the whole step, when all parts have ended.
func (h *head) conclude() {
	h.mu.Lock()
	step.MergeParts(&h.rec, h.parts, h.ending, time.Now())
	h.mu.Unlock()
	h.finish()
}

// finish stores the final record and ends the head.
func (h *head) finish() {
	rec := h.record()
	if err := h.store(); err != nil {
		h.log.Errorf("%v: it is tried again every %v", err, storeAgain)
		h.n.unstored.add(h.id, h)
		h.n.storeLater(h.store, func(stored bool) {
			h.n.unstored.drop(h.id, h)
			if !stored {
				h.log.Error("the step's result is lost: it could not be stored")
				return
			}
			h.log.Info("the step's result is stored")
		})
	}
	h.release()
	h.n.heads.remove(h.id)
	close(h.ended)
	h.log.WithField("state", rec.State).WithField("reason", rec.Reason).Info("step of several nodes ended")
}

// store stores the final record.
func (h *head) store() error {
	forgotten, err := h.n.store.finishHead(h.record(), h.n.store.now())
	h.n.forget(forgotten)
	return err
}
