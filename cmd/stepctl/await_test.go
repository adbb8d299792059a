package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

// waited is a noded of which only Wait and Show are asked.
type waited struct {
	api.NodeClient
	wait func(ctx context.Context, ref *api.StepRef) (*step.Record, error)
	show func(ref *api.StepRef) (*step.Record, error)
}

func (w *waited) Wait(ctx context.Context, ref *api.StepRef, _ ...grpc.CallOption) (*api.StepReply, error) {
	return replyOf(w.wait(ctx, ref))
}

func (w *waited) Show(_ context.Context, ref *api.StepRef, _ ...grpc.CallOption) (*api.StepReply, error) {
	return replyOf(w.show(ref))
}

func replyOf(rec *step.Record, err error) (*api.StepReply, error) {
	if err != nil {
		return nil, err
	}
	doc, err := json.Marshal(rec)
	return &api.StepReply{Step: [][]byte{doc}}, err
}

func ended(ref *api.StepRef, code int) *step.Record {
	return &step.Record{ID: step.ID{Job: ref.JobId, Step: ref.GetStepId()}, State: step.Completed, ExitCode: &code}
}

// A noded that is started anew costs nobody who waits for a step of several nodes, and the
// step's stepd is not blamed for what noded answers.
func TestAwaitNodedAnew(t *testing.T) {
	calls, told := 0, 0
	noded := &waited{wait: func(_ context.Context, ref *api.StepRef) (*step.Record, error) {
		if calls++; calls < 3 {
			return nil, status.Error(codes.Unavailable, "noded is stopping")
		}
		return ended(ref, 7), nil
	}}
	id := step.ID{Job: 4, Step: 1}
	far := &farStepd{wait: func(ctx context.Context) (*step.Record, error) {
		return awaitRecord(ctx, noded, id, func() { told++ })
	}}
	far.ctx, far.cancel = context.WithCancel(t.Context())
	rec, err := far.hear()
	if err != nil || *rec.ExitCode != 7 || rec.ID != id || calls != 3 || told != 1 {
		t.Errorf("got %+v, %v after %d calls, told %d times", rec, err, calls, told)
	}

	noded.wait = func(context.Context, *api.StepRef) (*step.Record, error) {
		return nil, status.Error(codes.NotFound, "no such step")
	}
	a := &attached{rec: ended(&api.StepRef{JobId: 4}, 0), conn: far}
	if _, err := a.conclude(a.hear()); status.Code(err) != codes.NotFound {
		t.Errorf("noded's word became %v", err)
	}

	noded.wait = func(context.Context, *api.StepRef) (*step.Record, error) {
		return nil, status.Error(codes.Unavailable, "noded is stopping")
	}
	far.cancel()
	if rec, err := far.hear(); rec != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("a client that has left waits on: %v, %v", rec, err)
	}
}

// Jobs of an array are waited for side by side: each is asked for before any has ended.
// One that noded does not know any more does not keep the others' codes back.
func TestWaitForJobs(t *testing.T) {
	const jobs = waitsMax + 5
	var asked sync.WaitGroup
	asked.Add(waitsMax)
	noded := &waited{wait: func(ctx context.Context, ref *api.StepRef) (*step.Record, error) {
		if n := ref.JobId - 10; n < waitsMax {
			asked.Done()
			asked.Wait()
			if n == 2 {
				return nil, status.Error(codes.NotFound, "no such step")
			}
			return ended(ref, int(n)%40), nil
		}
		return ended(ref, int(ref.JobId)-10-waitsMax+50), nil
	}}
	if code, err := waitForJobs(noded, step.ID{Job: 10, Step: step.BatchStep}, jobs); err != nil || code != 54 {
		t.Errorf("got %d, %v", code, err)
	}
	// That noded is gone for good ends all waits.
	noded.wait = func(ctx context.Context, ref *api.StepRef) (*step.Record, error) {
		if ref.JobId == 11 {
			return nil, errNotBack
		}
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-time.After(20 * time.Second):
			return ended(ref, 0), nil
		}
	}
	if _, err := waitForJobs(noded, step.ID{Job: 10, Step: step.BatchStep}, jobs); !errors.Is(err, errNotBack) {
		t.Errorf("got %v", err)
	}
}

// Which job a task of an array is, noded says.
func TestStepID(t *testing.T) {
	noded := &waited{show: func(ref *api.StepRef) (*step.Record, error) {
		if ref.JobId != 12 || ref.GetArrayTask() != 3 {
			return nil, status.Error(codes.NotFound, "no such job")
		}
		return ended(&api.StepRef{JobId: 14, StepId: ref.StepId}, 0), nil
	}}
	d := &dialer{noded: noded}
	for in, want := range map[string]step.ID{"12.0": {Job: 12}, "12.batch": {Job: 12, Step: step.BatchStep}, "12_3.1": {Job: 14, Step: 1}, "12_3.batch": {Job: 14, Step: step.BatchStep}, "12_4.0": {}, "12": {}, "12_3": {}, "x_1.0": {}, "12_.0": {}} {
		if got, err := d.stepID(in); (err == nil) != (want != step.ID{}) || got != want {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	}
}
