package node

import (
	"context"
	"time"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/step"
)

// Stat writes the records of steps, running steps with their present usage.
func (s *service) Stat(ctx context.Context, in *api.RefRequest, out recordWriter) error {
	ids, err := s.ownIDs(ctx, in.StepRef)
	if err != nil {
		return err
	}
	for _, id := range ids {
		rec, err := s.stat(ctx, id)
		if len(ids) > 1 && api.CodeOf(err) == api.NotFound { // it was forgotten meanwhile
			continue
		}
		if err == nil {
			err = out(func() (*step.Record, error) { return rec, nil })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *service) stat(ctx context.Context, id step.ID) (*step.Record, error) {
	rec, err := s.ownStep(ctx, id)
	if err != nil {
		return nil, err
	}
	f := s.n.reg.follower(id)
	if f == nil || !f.hasStepd() || rec.State.Final() {
		return rec, nil // it says what it has used, or it uses nothing yet
	}
	if rec, err = f.stat(ctx); err != nil {
		return nil, api.Errorf(api.Unavailable, "cannot tell what step %s uses: %v", id, err)
	}
	return rec, nil
}

// statEnding is what a step that does not answer has to come to its end.
const statEnding = time.Second

// stat is the record with stepd's current figures of the tasks. A step that
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
