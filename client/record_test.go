package client

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"stepd/api"
	"stepd/step"
)

// waited is a noded of which only the end of steps is asked.
type waited struct {
	wait func(ctx context.Context, ref api.StepRef) (*step.Record, error)
}

func (w *waited) Wait(ctx context.Context, ref api.StepRef) ([]*step.Record, error) {
	rec, err := w.wait(ctx, ref)
	return []*step.Record{rec}, err
}

func stepOf(ref api.StepRef) (id uint32) {
	if ref.StepID != nil {
		id = *ref.StepID
	}
	return id
}

func ended(ref api.StepRef, code int) *step.Record {
	return &step.Record{ID: step.ID{Job: ref.JobID, Step: stepOf(ref)}, State: step.Completed, ExitCode: &code}
}

// A noded that is started anew costs a client that waits for a step nothing, and what noded
// answers is the error.
func TestAwaitNodedAnew(t *testing.T) {
	calls, told := 0, 0
	noded := &waited{wait: func(_ context.Context, ref api.StepRef) (*step.Record, error) {
		if calls++; calls < 3 {
			return nil, api.NewError(api.Unavailable, "noded is stopping")
		}
		return ended(ref, 7), nil
	}}
	id := step.ID{Job: 4, Step: 1}
	ctx, cancel := context.WithCancel(t.Context())
	await := func() (*step.Record, error) { return awaitRecord(ctx, noded, id, func() { told++ }) }
	rec, err := await()
	if err != nil || *rec.ExitCode != 7 || rec.ID != id || calls != 3 || told != 1 {
		t.Errorf("got %+v, %v after %d calls, told %d times", rec, err, calls, told)
	}

	noded.wait = func(context.Context, api.StepRef) (*step.Record, error) {
		return nil, api.NewError(api.NotFound, "no such step")
	}
	if _, err := await(); api.CodeOf(err) != api.NotFound {
		t.Errorf("noded's word became %v", err)
	}

	noded.wait = func(context.Context, api.StepRef) (*step.Record, error) {
		return nil, api.NewError(api.Unavailable, "noded is stopping")
	}
	cancel()
	if rec, err := await(); rec != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("a client that has left waits on: %v, %v", rec, err)
	}
}

// A batch job that noded does not know any more has code 1; that noded stays away is an
// error.
func TestWaitForJob(t *testing.T) {
	id := step.ID{Job: 10, Step: step.BatchStep}
	noded := &waited{wait: func(_ context.Context, ref api.StepRef) (*step.Record, error) { return ended(ref, 54), nil }}
	if code, err := waitForJob(t.Context(), noded, id); err != nil || code != 54 {
		t.Errorf("got %d, %v", code, err)
	}
	noded.wait = func(context.Context, api.StepRef) (*step.Record, error) {
		return nil, api.NewError(api.NotFound, "no such step")
	}
	if code, err := waitForJob(t.Context(), noded, id); err != nil || code != 1 {
		t.Errorf("of a job that was forgotten: %d, %v", code, err)
	}
	noded.wait = func(context.Context, api.StepRef) (*step.Record, error) { return nil, errNotBack }
	if _, err := waitForJob(t.Context(), noded, id); !errors.Is(err, errNotBack) {
		t.Errorf("without noded: %v", err)
	}
}

// TestPrintList: a listing is a document of its values, in their order; one that fails has no end.
func TestPrintList(t *testing.T) {
	failed := errors.New("noded has gone")
	for want, values := range map[string]struct {
		n   int
		err error
	}{
		"{\"schema\":1,\"steps\":[]}\n":      {0, nil},
		"{\"schema\":1,\"steps\":[0]}\n":     {1, nil},
		"{\"schema\":1,\"steps\":[0,1,2]}\n": {3, nil},
		"":                                   {1, failed},
	} {
		var out bytes.Buffer
		err := PrintList(&out, "steps", func(yield func(int, error) bool) {
			for i := range values.n {
				if !yield(i, nil) {
					return
				}
			}
			if values.err != nil {
				yield(0, values.err)
			}
		})
		if out.String() != want || err != values.err {
			t.Errorf("%d values: %q, %v, want %q, %v", values.n, &out, err, want, values.err)
		}
	}
}

// TestPrintListStreams: values are written before the last one has come.
func TestPrintListStreams(t *testing.T) {
	var out bytes.Buffer
	before := 0
	err := PrintList(&out, "steps", func(yield func(string, error) bool) {
		for range 100 {
			if !yield(strings.Repeat("x", 4096), nil) {
				return
			}
		}
		before = out.Len()
	})
	if err != nil || before < 90*4096 {
		t.Errorf("%d bytes were written before the end, %v", before, err)
	}
}
