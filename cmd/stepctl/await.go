package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

// reconnectFor is how long a noded that is gone is waited for.
const reconnectFor = 60 * time.Second

// errNotBack says that noded has stayed away.
var errNotBack = errors.New("noded did not come back")

// sayGone tells that noded does not answer.
func sayGone() { say("noded is gone: waiting for it; the step goes on") }

// awaitRecord asks noded for the end of a step, and again where noded goes away meanwhile,
// of which it tells by gone each time; it is errNotBack where noded stays away.
func awaitRecord(ctx context.Context, client api.NodeClient, id step.ID, gone func()) (*step.Record, error) {
	since := time.Time{}
	for {
		began := time.Now()
		r, err := client.Wait(ctx, &api.StepRef{JobId: id.Job, StepId: &id.Step})
		if err == nil {
			if len(r.Step) != 1 {
				return nil, fmt.Errorf("noded told %d records of step %s", len(r.Step), id)
			}
			rec := new(step.Record)
			if err := json.Unmarshal(r.Step[0], rec); err != nil {
				return nil, fmt.Errorf("cannot parse the record of step %s: %w", id, err)
			}
			return rec, nil
		}
		if status.Code(err) != codes.Unavailable {
			return nil, err
		}
		// A call that has lasted longer than a connection takes to fail was heard by noded,
		// which has gone anew.
		if since.IsZero() || time.Since(began) > callTimeout {
			since = time.Now()
			gone()
		}
		if time.Since(since) > reconnectFor {
			return nil, fmt.Errorf("%w within %v; step %s goes on: %s", errNotBack, reconnectFor, id, plain(err))
		}
		// Nothing tells when a socket is served again but trying it.
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
