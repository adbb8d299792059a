package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"stepd/api"
	"stepd/client/terminal"
	"stepd/step"
	"time"
)

// reconnectFor is how long a noded that is gone is waited for.
const reconnectFor = 60 * time.Second

// errNotBack says that noded has stayed away.
var errNotBack = errors.New("noded did not come back")

// sayGone reports that noded does not answer.
func sayGone() { terminal.Say("noded is gone: waiting for it; the step goes on") }

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
		// Only trying shows when a socket is served again.
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// lastWait is how long noded may take to notice the end of a step whose stepd is gone.
const lastWait = 10 * time.Second

// last is the last record of a step that is about to end.
func (d *Dialer) last(id step.ID) (*step.Record, error) {
	_, err := Ask(d, func(ctx context.Context, client *api.Client) ([]*step.Record, error) {
		ctx, cancel := context.WithTimeout(ctx, lastWait)
		defer cancel()
		return client.Wait(ctx, api.Ref(id))
	})
	switch {
	case api.CodeOf(err) == api.DeadlineExceeded:
		return nil, fmt.Errorf("noded has not learnt of its end within %v", lastWait)
	case err != nil:
		return nil, err
	}
	return d.record(id)
}

// record asks noded for one step.
func (d *Dialer) record(id step.ID) (*step.Record, error) {
	recs, err := Ask(d, func(ctx context.Context, client *api.Client) ([]*step.Record, error) {
		return client.Show(ctx, api.Ref(id))
	})
	if err == nil && len(recs) != 1 {
		err = fmt.Errorf("noded told %d records of one step of job %d", len(recs), id.Job)
	}
	if err != nil {
		return nil, err
	}
	return recs[0], nil
}

// Ask is Call for a question that has an answer.
func Ask[R any](d *Dialer, f func(context.Context, *api.Client) (R, error)) (reply R, err error) {
	err = d.Call(func(ctx context.Context, client *api.Client) error {
		reply, err = f(ctx, client)
		return err
	})
	return reply, err
}

// PrintJSON writes one document, {"schema":1, key: value}.
func PrintJSON(key string, value any) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = fmt.Printf("{\"schema\":%d,%q:%s}\n", step.Schema, key, b)
	return err
}

// StateWord is the state as people read it: a suspended step is
// SUSPENDED, as in squeue(1).
func StateWord(rec *step.Record) string {
	if rec.Suspended != nil && !rec.State.Final() {
		return "SUSPENDED"
	}
	return string(rec.State)
}
