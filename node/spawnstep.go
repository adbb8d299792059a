package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/step"
)

// spawnStep starts another step of the job for the tasks of parent. Their stepd,
// which is root's, has made the request out of its own step's.
func (n *Node) spawnStep(ctx context.Context, parent *follower, ask *stepapi.Ask) (*stepapi.Answer, error) {
	var who struct {
		Job *uint32 `json:"job"`
		UID *uint32 `json:"uid"`
	}
	if err := json.Unmarshal(ask.Request, &who); err != nil {
		return nil, fmt.Errorf("cannot parse the request of step %s: %w", parent.id, err)
	}
	if who.Job == nil || who.UID == nil || *who.Job != parent.id.Job || *who.UID != parent.job.UID {
		return nil, fmt.Errorf("internal error: step %s wants a step of another job or user", parent.id)
	}
	if err := n.reg.beginSpawn(parent.job, n.cfg.SpawnMax, n.heads.spawnedElsewhere(parent.id.Job, n.cfg.NodeName)); err != nil {
		return nil, err
	}
	defer n.reg.endSpawn(parent.job)
	req, err := n.decode(ask.Request)
	if err != nil {
		return nil, err
	}
	sp := &spawned{Parent: parent.id, Preput: ask.Preput}
	nodes, ranks, err := n.placeSpawned(parent.job, req, ask.Hosts)
	if err != nil {
		return nil, err
	}
	if len(nodes) != 1 || nodes[0] != n.cfg.NodeName {
		req.WantNodes, req.NNodes, sp.ranks = nodes, len(nodes), ranks
		return n.spawnHead(ctx, req, sp)
	}
	return n.spawnHere(ctx, parent, ask.Request, sp)
}

// spawnHere is spawnStep of a step of this node alone.
func (n *Node) spawnHere(ctx context.Context, parent *follower, raw []byte, sp *spawned) (*stepapi.Answer, error) {
	f, err := n.reserveSpawned(ctx, parent, raw, sp)
	if err != nil {
		return nil, err
	}
	if !f.claim() {
		return nil, api.Errorf(api.Aborted, "step %s was cancelled before its launch", f.id)
	}
	spec, err := f.launch(nil)
	if err != nil {
		return nil, err
	}
	f.log.WithField("parent", parent.id.String()).WithField("ntasks", spec.NTasks).Info("step spawned")
	return &stepapi.Answer{ID: &f.id, SocketDir: n.files.stepsDir(), SocketName: n.files.socketName(f.id)}, nil
}

// spawnHead is spawnStep of a step that has other nodes: its head is this one, and
// its launcher the stepd that asks.
func (n *Node) spawnHead(ctx context.Context, req *step.Request, sp *spawned) (*stepapi.Answer, error) {
	raw, err := encodeRequest(req)
	if err != nil {
		return nil, err
	}
	h, err := n.reserveHead(ctx, api.Peer{}, req, raw, step.Starting, sp)
	if err != nil {
		return nil, err
	}
	if !h.claim() {
		return nil, api.Errorf(api.Aborted, "step %s was cancelled before its launch", h.id)
	}
	spec, key, err := h.launch(nil)
	if err != nil {
		return nil, err
	}
	h.log.WithField("parent", sp.Parent.String()).WithField("ntasks", spec.NTasks).Info("step spawned")
	return &stepapi.Answer{ID: &h.id, Spec: clientSpec(spec), Key: key}, nil
}

// reserveSpawned numbers the step, which is one of this node alone.
func (n *Node) reserveSpawned(ctx context.Context, parent *follower, raw []byte, sp *spawned) (*follower, error) {
	least := uint32(0)
	for range proposals {
		want, err := n.numberFor(ctx, parent.job, least)
		if err != nil {
			return nil, err
		}
		f, _, err := n.reserveAs(ctx, api.Peer{}, raw, order{state: step.Starting, want: want, know: sp.tell})
		taken, ok := errors.AsType[errTaken](err)
		if !ok {
			return f, err
		}
		least = taken.next.Step
	}
	return nil, api.Errorf(api.Unavailable, "the nodes of job %d do not agree on a number for a step", parent.id.Job)
}

// spawnedStep finds a step that the tasks of f's job have spawned and that runs; nil
// where it has ended, with its record.
func (n *Node) spawnedStep(f *follower, id *step.ID) (liveStep, *step.Record, error) {
	if id == nil || id.Job != f.id.Job {
		return nil, nil, fmt.Errorf("internal error: step %s asks for a step of another job", f.id)
	}
	if live := n.running(*id); live != nil {
		return live, nil, nil
	}
	rec, err := n.store.step(*id)
	if err != nil {
		return nil, nil, fmt.Errorf("no such step %q", *id)
	}
	return nil, rec, nil
}

// awaitSpawned returns the last record of a spawned step, or none where it has not
// ended in the time that is waited for.
func (n *Node) awaitSpawned(ctx context.Context, f *follower, ask *stepapi.Ask) (*stepapi.Answer, error) {
	live, rec, err := n.spawnedStep(f, ask.ID)
	if err != nil {
		return nil, err
	}
	if live != nil {
		if !n.await(ctx, live.end(), ask.WaitMS) {
			return &stepapi.Answer{}, nil
		}
		rec = live.record()
	}
	return &stepapi.Answer{Found: true, Record: rec}, nil
}

func (n *Node) cancelSpawned(ctx context.Context, f *follower, ask *stepapi.Ask) (*stepapi.Answer, error) {
	live, _, err := n.spawnedStep(f, ask.ID)
	if err == nil && live != nil {
		err = live.cancel(ctx, ask.Reason)
	}
	return &stepapi.Answer{}, err
}

// beginSpawn counts a spawn that is under way; endSpawn ends it. elsewhere are those
// that run on other nodes alone.
func (r *registry) beginSpawn(j *job, limit, elsewhere int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	running := j.spawning + elsewhere
	for _, f := range r.steps {
		if f.job == j && f.parent != nil {
			running++
		}
	}
	if running >= limit {
		return api.Errorf(api.ResourceExhausted, "job %d runs %d spawned steps, and %d is the limit (SpawnStepsMax)", j.ID, running, limit)
	}
	j.spawning++
	return nil
}

func (r *registry) endSpawn(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	j.spawning--
}
