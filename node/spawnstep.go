package node

import (
	"context"
	"encoding/json"
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
	if err := n.reg.beginSpawn(parent.job, n.cfg.SpawnMax); err != nil {
		return nil, err
	}
	defer n.reg.endSpawn(parent.job)
	req, err := n.decode(ask.Request)
	if err != nil {
		return nil, err
	}
	know := func(spec *step.Spec) { spec.Parent, spec.Preput = &parent.id, ask.Preput }
	f, _, err := n.reserveAs(ctx, api.Peer{}, req, order{state: step.Starting, size: len(ask.Request), know: know})
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

// beginSpawn counts a spawn that is under way; endSpawn ends it.
func (r *registry) beginSpawn(j *job, limit int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	running := j.spawning
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
