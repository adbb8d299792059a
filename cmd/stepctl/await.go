package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"stepd/api"
	"stepd/step"
)

// reconnectFor is how long a noded that is gone is waited for.
const reconnectFor = 60 * time.Second

// errNotBack says that noded has stayed away.
var errNotBack = errors.New("noded did not come back")

// sayGone tells that noded does not answer.
func sayGone() { say("noded is gone: waiting for it; the step goes on") }

// waiter is the part of a Client that waits for the end of steps.
type waiter interface {
	Wait(ctx context.Context, ref api.StepRef) ([]*step.Record, error)
}

// awaitRecord asks noded for the end of a step, and again where noded goes away meanwhile,
// of which it tells by gone each time; it is errNotBack where noded stays away.
func awaitRecord(ctx context.Context, client waiter, id step.ID, gone func()) (*step.Record, error) {
	since := time.Time{}
	for {
		began := time.Now()
		recs, err := client.Wait(ctx, api.Ref(id))
		if err == nil {
			if len(recs) != 1 {
				return nil, fmt.Errorf("noded told %d records of step %s", len(recs), id)
			}
			return recs[0], nil
		}
		if api.CodeOf(err) != api.Unavailable {
			return nil, err
		}
		// A call that has lasted longer than a connection takes to fail was heard by noded,
		// which has gone anew.
		if since.IsZero() || time.Since(began) > callTimeout {
			since = time.Now()
			gone()
		}
		if time.Since(since) > reconnectFor {
			return nil, fmt.Errorf("%w within %v; step %s goes on: %s", errNotBack, reconnectFor, id, err)
		}
		// Nothing tells when a socket is served again but trying it.
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
