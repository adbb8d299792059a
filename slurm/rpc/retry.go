package rpc

import (
	"context"
	"errors"
	"time"

	"stepd/slurm/wire"
)

// Retry is how often a message is sent again whose peers do not answer, as the original step
// daemon does it. The zero value sends it once.
type Retry struct {
	// Tries bounds how often the peers are gone through. 0 is once, Forever no bound.
	Tries int
	// Pause is the time before the second try; each later one is twice as long, up to Longest.
	// A Longest of 0 is Pause.
	Pause, Longest time.Duration
	// Failed is called before each pause. nil does nothing.
	Failed func(err error, again time.Duration)
}

// Forever is the number of tries of what must not be lost.
const Forever = -1

// ToSrun is for messages to srun, of a step of so many nodes: they may all come at once.
func ToSrun(nodes uint32) Retry {
	return Retry{Tries: 5 + int(nodes/1024), Pause: 100 * time.Millisecond, Longest: 800 * time.Millisecond}
}

// StepEnd is for the end of a step: the job waits for it.
func StepEnd() Retry { return Retry{Tries: Forever, Pause: time.Minute} }

// BatchEnd is for the end of a batch script.
func BatchEnd() Retry { return Retry{Tries: 241, Pause: 15 * time.Second} }

// standby is the answer of a controller that waits for the first one's end.
const standby = 2027

// Deliver sends a message to the first of the peers that takes it. They are gone through in
// turn, and again as retry says. A *ReturnError is a peer's refusal, which ends it; another
// error is the last one of each peer, joined, or the context's cause.
func (c *Client) Deliver(ctx context.Context, to []Peer, m wire.Message, retry Retry) error {
	pause := retry.Pause
	for try := 1; ; try++ {
		err := c.toOne(ctx, to, m)
		var refused *ReturnError
		if err == nil || errors.As(err, &refused) && refused.Code != standby || retry.Tries != Forever && try >= retry.Tries {
			return err
		}
		if retry.Failed != nil {
			retry.Failed(err, pause)
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(pause):
		}
		pause = min(2*pause, max(retry.Pause, retry.Longest))
	}
}

// toOne sends a message to the first of the peers that takes or refuses it.
func (c *Client) toOne(ctx context.Context, to []Peer, m wire.Message) error {
	var failed []error
	for _, peer := range to {
		err := c.Send(ctx, peer, m)
		var refused *ReturnError
		if err == nil || errors.As(err, &refused) && refused.Code != standby {
			return err
		}
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}
