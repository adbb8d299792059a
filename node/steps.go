package node

import (
	"context"
	"errors"
	"io"
	"os"
	"time"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/node/state"
	"stepd/step"
)

// IDs are the steps that ref names: none only of a job that runs.
func (n steps) IDs(ref api.StepRef) ([]step.ID, error) {
	if ref.StepID != nil {
		return []step.ID{{Job: ref.JobID, Step: *ref.StepID}}, nil
	}
	var ids []step.ID
	if ref.JobID != 0 {
		ids = n.store.IDs(ref.JobID)
	}
	if len(ids) == 0 && n.reg.job(ref.JobID) == nil {
		return nil, api.Errorf(api.NotFound, "no such job \"%d\"", ref.JobID)
	}
	return ids, nil
}

// List returns the steps that have not ended, with all the ended ones as well.
func (n steps) List(all bool) (ids []step.ID) {
	if all {
		return n.store.IDs(0)
	}
	for _, f := range n.reg.followers() {
		ids = append(ids, f.id)
	}
	return ids
}

// Step returns the record of a step: of one that runs as it is now, since the store has
// its beginning.
func (n steps) Step(id step.ID) (*step.Record, error) {
	if f := n.reg.follower(id); f != nil {
		return f.record(), nil
	}
	rec, err := n.store.Step(id)
	if errors.Is(err, state.ErrUnknown) {
		return nil, api.Errorf(api.NotFound, "no such step %q", id)
	}
	if err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	return rec, nil
}

// Owner is the user of a job that runs, or is ending.
func (n steps) Owner(job uint32) (uid uint32, ok bool) {
	j := n.reg.job(job)
	if j == nil {
		return 0, false
	}
	return j.UID, true
}

// Await waits until the steps that ref names have ended, and returns those that there are then.
func (n steps) Await(ctx context.Context, ref api.StepRef) ([]step.ID, error) {
	// An allocation may end without a step; other jobs end with theirs.
	if j := n.reg.job(ref.JobID); ref.StepID == nil && j != nil && j.Origin == step.OriginAlloc {
		if err := n.awaitEnd(ctx, j.ended, "job"); err != nil {
			return nil, err
		}
		ids, err := n.IDs(ref)
		if api.CodeOf(err) == api.NotFound {
			return nil, nil
		}
		return ids, err
	}
	ids, err := n.IDs(ref)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		f := n.reg.follower(id)
		if f == nil {
			continue
		}
		if err := n.awaitEnd(ctx, f.ended, "step"); err != nil {
			return nil, err
		}
	}
	return n.IDs(ref)
}

// awaitEnd waits until ended is closed: the end of a step or of a job, as what says.
func (n steps) awaitEnd(ctx context.Context, ended <-chan struct{}, what string) error {
	select {
	case <-ended:
		return nil
	case <-n.stopping:
		return api.Errorf(api.Unavailable, "noded is stopping; the %s goes on", what)
	case <-ctx.Done():
		return api.ContextError(ctx.Err())
	}
}

// statEnding is how long the end of a step that does not answer is awaited.
const statEnding = time.Second

// Stat is the record of a step, with stepd's current figures of the tasks where it runs.
func (n steps) Stat(ctx context.Context, id step.ID) (*step.Record, error) {
	rec, err := n.Step(id)
	if err != nil {
		return nil, err
	}
	f := n.reg.follower(id)
	if f == nil || !f.hasStepd() || rec.State.Final() {
		return rec, nil // it says what it has used, or it uses nothing yet
	}
	reply, err := f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeStat})
	if err != nil {
		select {
		case <-f.ended:
		case <-time.After(statEnding):
		case <-ctx.Done():
		}
	}
	rec = f.record()
	switch {
	case rec.State.Final(): // it has ended meanwhile
	case err != nil:
		return nil, api.Errorf(api.Unavailable, "cannot tell what step %s uses: %v", id, err)
	case reply.Record != nil:
		rec.MergeStat(reply.Record)
	}
	return rec, nil
}

// Output opens what stepd has left of a step's output; the caller closes it. The file is whole:
// stepd has renamed it.
func (n steps) Output(id step.ID) (output io.ReadCloser, size int64, err error) {
	rec, err := n.Step(id)
	if err != nil {
		return nil, 0, err
	}
	if !rec.State.Final() {
		return nil, 0, api.Errorf(api.FailedPrecondition, "step %s is %s: its stepd has its output", rec.ID, rec.State)
	}
	f, err := n.spool.Open(n.spool.Output(rec.ID))
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, api.Errorf(api.NotFound, "nothing is kept of the output of step %s", rec.ID)
	}
	if err != nil {
		return nil, 0, api.Errorf(api.Internal, "cannot open kept output: %v", err)
	}
	if size, err = f.Size(); err != nil {
		f.Close()
		return nil, 0, api.Errorf(api.Internal, "cannot open kept output: %v", err)
	}
	return f, size, nil
}
