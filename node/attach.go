package node

import (
	"context"
	"encoding/json"

	"stepd/api"
	"stepd/step"
)

// watchKey lets its holder see a step of several nodes, and type into its terminal: the
// step's head has it, and gives it to whom the step belongs, by way of their own noded.
type watchKey struct {
	// First is the step's first node, to whose stepd a watcher connects.
	First step.LayoutNode `json:"first"`
	// Key is the private half of the layout's Watcher (PKCS #8).
	Key []byte `json:"key"`
}

// makeWatchKey puts the public half into the layout, before the launch.
func (h *head) makeWatchKey() error {
	key, hash, err := newNetKey()
	if err != nil {
		return err
	}
	h.layout.Watcher = hash
	h.mu.Lock()
	defer h.mu.Unlock()
	h.watch = &watchKey{First: h.layout.Nodes[0], Key: key}
	return nil
}

// Attach answers with the key of the watchers of a step of several nodes.
func (s *service) Attach(ctx context.Context, ref *api.StepRef) (*api.RunReply, error) {
	if ref == nil || ref.StepId == nil {
		return nil, api.NewError(api.InvalidArgument, "step: is missing")
	}
	recs, err := s.own(ctx, ref)
	if err != nil {
		return nil, err
	}
	rec := recs[0]
	key, err := s.n.findWatchKey(ctx, rec)
	if err != nil {
		return nil, err
	}
	spec := step.Spec{ID: rec.ID, Layout: &step.Layout{Nodes: []step.LayoutNode{key.First}}}
	spec.NTasks = rec.NTasks
	doc, err := encode(&spec)
	if err != nil {
		return nil, err
	}
	return &api.RunReply{JobId: rec.ID.Job, StepId: rec.ID.Step, Node: s.n.cfg.NodeName, Spec: doc, LauncherKey: key.Key}, nil
}

// findWatchKey has it here, or asks the step's head.
func (n *Node) findWatchKey(ctx context.Context, rec *step.Record) (*watchKey, error) {
	switch {
	case n.heads.get(rec.ID) != nil:
		return n.ownWatchKey(rec.ID)
	case rec.Head == "":
		return nil, api.Errorf(api.FailedPrecondition, "step %s is of this node alone, or has ended", rec.ID)
	}
	answers, err := n.fan(ctx, "watch", stepRequest{ID: rec.ID}, partsOf([]string{rec.Head}))
	if err == nil {
		err = answers[0].err
	}
	if err != nil {
		return nil, api.Errorf(api.CodeOf(err), "node %s, the step's head: %s", rec.Head, api.MessageOf(err))
	}
	key := new(watchKey)
	if err := json.Unmarshal(answers[0].body, key); err != nil {
		return nil, api.Errorf(api.Internal, "node %s, the step's head: its answer cannot be parsed: %v", rec.Head, err)
	}
	return key, nil
}

func (n *Node) ownWatchKey(id step.ID) (*watchKey, error) {
	h := n.heads.get(id)
	if h == nil {
		return nil, api.Errorf(api.NotFound, "no such step %q", id)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.watch == nil {
		return nil, api.Errorf(api.FailedPrecondition, "step %s was not launched yet, or by an older noded", id)
	}
	return h.watch, nil
}

// partWatch answers a node that has a part of the step.
func (n *Node) partWatch(_ context.Context, common, _ []byte) (any, error) {
	var in stepRequest
	if err := decodePart(common, &in); err != nil {
		return nil, err
	}
	return n.ownWatchKey(in.ID)
}
