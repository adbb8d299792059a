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

// asked takes one request of stepd's for its tasks, and answers it when it is
// done: a spawn must not keep the loop from hearing of the step.
func (f *follower) asked(m *stepapi.Msg) {
	if f.asks.Add(1) > stepapi.AsksMax {
		f.asks.Add(-1)
		f.link.send(&stepapi.Msg{Type: stepapi.TypeAnswer, Seq: m.Seq, Error: fmt.Sprintf("step %s waits for %d answers of noded already, the limit", f.id, stepapi.AsksMax)})
		return
	}
	f.n.work.Go(func() {
		defer f.asks.Add(-1)
		reply := &stepapi.Msg{Type: stepapi.TypeAnswer, Seq: m.Seq}
		answer, err := launcher{f.n}.answer(context.Background(), f, m.Ask)
		if err != nil {
			reply.Error = api.MessageOf(err)
		} else {
			reply.Answer = answer
		}
		f.link.send(reply)
	})
}

// answer does what a step's tasks ask for.
func (n launcher) answer(ctx context.Context, f *follower, ask *stepapi.Ask) (*stepapi.Answer, error) {
	if ask == nil {
		return nil, errors.New("internal error: an empty request")
	}
	if ask.Do == stepapi.AskSpawn {
		return n.spawnStep(ctx, f, ask)
	}
	if answer, known, err := f.job.exchange.Answer(ctx, ask); known {
		return answer, err
	}
	return nil, fmt.Errorf("cannot do %.40q: this noded does not know it", ask.Do)
}

// spawnStep starts another step of the job for the tasks of parent. Their stepd,
// which is root's, has made the request out of its own step's.
func (n launcher) spawnStep(ctx context.Context, parent *follower, ask *stepapi.Ask) (*stepapi.Answer, error) {
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
	return &stepapi.Answer{ID: &f.id, SocketDir: n.spool.StepsDir(), SocketName: n.spool.SocketName(f.id)}, nil
}
