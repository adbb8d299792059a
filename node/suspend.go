package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"stepd/api"
	"stepd/api/stepapi"
	"stepd/node/state"
	"stepd/step"
)

// Suspend makes a step, or a job with all of its steps, stand still.
func (s *service) Suspend(ctx context.Context, in *api.RefRequest) (*api.Empty, error) {
	who, recs, err := s.toStop(ctx, in.StepRef)
	if err != nil {
		return nil, err
	}
	if in.StepID != nil {
		return answer(s.n.eachStep(recs, func(f *follower) error { return f.suspend(ctx, who.UID) }))
	}
	// The job first: then no step begins that is not suspended below.
	j := s.n.reg.job(in.JobID)
	if j == nil {
		return nil, api.Errorf(api.FailedPrecondition, "job %d has ended", in.JobID)
	}
	if err := s.n.setSuspended(j, &state.Suspension{Since: time.Now(), By: who.UID}); err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	// Steps that were numbered meanwhile are among them; ending steps need no
	// report.
	recs, err = s.n.jobSteps(j.ID)
	if err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	_, err = s.n.eachStep(recs, func(f *follower) error {
		err := f.suspend(ctx, who.UID)
		if rec := f.record(); rec.Suspended != nil || isEnding(f, rec) {
			return nil // it is suspended, or will not run
		}
		return err
	})
	if err != nil && !errors.Is(err, errNoStep) {
		return nil, api.Errorf(api.FailedPrecondition, "job %d is suspended, but not all of its steps: %v", j.ID, err)
	}
	return &api.Empty{}, nil
}

// Unsuspend undoes it.
func (s *service) Unsuspend(ctx context.Context, in *api.RefRequest) (*api.Empty, error) {
	who, recs, err := s.toStop(ctx, in.StepRef)
	if err != nil {
		return nil, err
	}
	resume := func(f *follower) error { return f.unsuspend(ctx, who.UID) }
	j := s.n.reg.job(in.JobID)
	if in.StepID != nil || j == nil {
		return answer(s.n.eachStep(recs, resume))
	}
	was := s.n.reg.suspended(j)
	if was != nil && was.By == 0 && !who.Root() {
		return nil, api.Errorf(api.PermissionDenied, "permission denied: job %d was suspended by root", j.ID)
	}
	if was == nil {
		told, err := s.n.eachStep(recs, resume)
		if told > 0 { // some were, and those that were not need no word
			return &api.Empty{}, nil
		}
		return answer(told, err)
	}
	_, err = s.n.eachStep(recs, func(f *follower) error {
		err := resume(f)
		if rec := f.record(); err != nil && (rec.Suspended == nil || isEnding(f, rec)) {
			return nil // it was resumed by itself, or does not run any more
		}
		return err
	})
	if err := s.n.setSuspended(j, nil); err != nil {
		return nil, api.NewError(api.Internal, err.Error())
	}
	if err != nil && !errors.Is(err, errNoStep) {
		return nil, api.Errorf(api.FailedPrecondition, "job %d is resumed, but not all of its steps: %v", j.ID, err)
	}
	return &api.Empty{}, nil
}

// isEnding reports whether the step has nothing left that could stand still.
func isEnding(f *follower, rec *step.Record) bool {
	select {
	case <-f.ended:
		return true
	default:
		return rec.State == step.Completing || rec.State.Final()
	}
}

// errNoStep is eachStep's word for none of the steps running.
var errNoStep = errors.New("it has ended")

// toStop returns the client, and the steps that it may act on.
func (s *service) toStop(ctx context.Context, in api.StepRef) (api.Peer, []*step.Record, error) {
	who, err := caller(ctx)
	if err != nil {
		return api.Peer{}, nil, err
	}
	recs, err := s.own(ctx, in)
	return who, recs, err
}

// eachStep asks all of the steps that run at once: each takes two seconds. told
// counts the steps that did it; the error joins the others' errors.
func (n *Node) eachStep(recs []*step.Record, ask func(*follower) error) (told int, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, rec := range recs {
		f := n.reg.follower(rec.ID)
		if f == nil {
			continue
		}
		wg.Go(func() {
			ferr := ask(f)
			mu.Lock()
			defer mu.Unlock()
			if ferr == nil {
				told++
			} else {
				err = errors.Join(err, fmt.Errorf("step %s: %w", rec.ID, ferr))
			}
		})
	}
	wg.Wait()
	if told == 0 && err == nil {
		err = errNoStep
	}
	return told, err
}

// answer is the caller's result of eachStep.
func answer(_ int, err error) (*api.Empty, error) {
	if err != nil {
		return nil, api.NewError(api.FailedPrecondition, err.Error())
	}
	return &api.Empty{}, nil
}

// setSuspended changes a job's state for ever, and then for the next request.
// What root has suspended stays root's.
func (n *Node) setSuspended(j *job, rec *state.Suspension) error {
	if was := n.reg.suspended(j); rec != nil && was != nil {
		rec.Since = was.Since
		if was.By == 0 {
			rec.By = 0
		}
	}
	if err := n.store.SetSuspended(j.ID, rec); err != nil {
		return err
	}
	n.reg.setSuspended(j, rec)
	return nil
}

// suspend asks the step's stepd. A step that has none yet is suspended as soon
// as it has.
func (f *follower) suspend(ctx context.Context, by uint32) error {
	f.mu.Lock()
	if f.stage != followed {
		f.suspendBy = &by
		f.mu.Unlock()
		return nil
	}
	f.mu.Unlock()
	return f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeSuspend, By: &by})
}

func (f *follower) unsuspend(ctx context.Context, by uint32) error {
	f.mu.Lock()
	if f.stage != followed {
		defer f.mu.Unlock()
		was := f.suspendBy
		switch {
		case was == nil:
			return errors.New("cannot resume the step: it is not suspended")
		case *was == 0 && by != 0:
			return errors.New("permission denied: the step was suspended by root")
		}
		f.suspendBy = nil
		return nil
	}
	f.mu.Unlock()
	return f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeResume, By: &by})
}

// suspendLate suspends a step whose stepd has just started, unless that was
// undone meanwhile.
func (f *follower) suspendLate(by uint32) {
	if err := f.ask(context.Background(), &stepapi.Msg{Type: stepapi.TypeSuspend, By: &by}); err != nil {
		select {
		case <-f.ended:
		default:
			f.log.Errorf("cannot suspend the step: %v", err)
		}
	}
}
