package node

import (
	"context"
	"time"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/step"
)

// Stat answers with the records of steps, and what those that run use just now.
func (s *service) Stat(ctx context.Context, in *api.StepRef) (*api.StepReply, error) {
	recs, err := s.own(ctx, in)
	if err != nil {
		return nil, err
	}
	for i, rec := range recs {
		f := s.n.reg.follower(rec.ID)
		if f == nil || !f.hasStepd() || rec.State.Final() {
			continue // its record says what it has used, or it uses nothing yet
		}
		if recs[i], err = f.stat(ctx); err != nil {
			return nil, api.Errorf(api.Unavailable, "cannot tell what step %s uses: %v", rec.ID, err)
		}
	}
	return stepReply(recs)
}

// statEnding is what a step that does not answer has to come to its end.
const statEnding = time.Second

// stat is the record with what stepd tells of the tasks just now. A step that
// ends meanwhile has its final one.
func (f *follower) stat(ctx context.Context) (*step.Record, error) {
	reply, err := f.askFor(ctx, &stepapi.Msg{Type: stepapi.TypeStat})
	if err != nil {
		select {
		case <-f.ended:
			return f.record(), nil
		case <-time.After(statEnding):
		case <-ctx.Done():
		}
	}
	rec := f.record()
	if err != nil || rec.State.Final() {
		if rec.State.Final() {
			err = nil
		}
		return rec, err
	}
	if reply.Record != nil {
		rec.MergeStat(reply.Record)
	}
	return rec, nil
}
