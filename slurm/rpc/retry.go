package rpc

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sys/unix"

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
	// Final says that a peer which refuses the connection has ended, and that no other try follows.
	Final bool
	// Soon ends a pause: there is a sign that the peer can be reached again. nil is none.
	Soon <-chan struct{}
	// Failed is called before each pause. nil does nothing.
	Failed func(err error, again time.Duration)
}

// Forever is the number of tries of what must not be lost.
const Forever = -1

// ToSrun is for messages to srun, of a step of so many nodes: they may all come at once.
func ToSrun(nodes uint32) Retry {
	// srun listens before it has a step launched.
	return Retry{Tries: 5 + int(nodes/1024), Pause: 100 * time.Millisecond, Longest: 800 * time.Millisecond, Final: true}
}

// StepEnd is for the end of a step: the job waits for it.
func StepEnd() Retry { return Retry{Tries: Forever, Pause: time.Second, Longest: time.Minute} }

// BatchEnd is for the end of a batch script.
func BatchEnd() Retry { return Retry{Tries: 241, Pause: 15 * time.Second} }

// SignError is the error of a message that has no token: munged does not answer on this machine.
type SignError struct{ Err error }

func (e *SignError) Error() string { return e.Err.Error() }
func (e *SignError) Unwrap() error { return e.Err }

// The pauses where a message cannot be signed: no peer has been asked, and none is burdened.
const (
	signPause    = time.Second
	signPauseMax = 15 * time.Second
)

// unreachablePause is the longest pause where the network leads to no peer: nothing burdens one,
// and a node that was cut off reports soon after its return.
const unreachablePause = 2 * time.Second

// unreachable reports whether no peer could be connected to, and none has refused.
func unreachable(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && !errors.Is(err, unix.ECONNREFUSED)
}

// standby is the answer of a controller that waits for the first one's end.
const standby = 2027

// Deliver sends a message to the first of the peers that takes it. They are gone through in
// turn, and again as retry says; a message that cannot be signed is no try, and is not given up
// until ctx ends; nor is one of long pauses while no peer can be reached. A *ReturnError is a peer's refusal, which ends it; another error is the last one
// of each peer, joined, or the context's cause.
func (c *Client) Deliver(ctx context.Context, to []Peer, m wire.Message, retry Retry) error {
	pause, unsigned := retry.Pause, signPause
	for try := 1; ; {
		err := c.toOne(ctx, to, m)
		if err == nil || retry.ends(err, try) {
			return err
		}
		wait := pause
		if errors.As(err, new(*SignError)) {
			wait, unsigned = unsigned, min(2*unsigned, signPauseMax)
		} else if unreachable(err) && pause > unreachablePause { // no try: what waits so long must not be lost
			wait = unreachablePause
		} else {
			try, pause = try+1, min(2*pause, max(retry.Pause, retry.Longest))
		}
		if retry.Failed != nil {
			retry.Failed(err, wait)
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-retry.Soon:
		case <-time.After(wait):
		}
	}
}

// ends reports whether no other try follows an error.
func (r *Retry) ends(err error, try int) bool {
	var refused *ReturnError
	switch {
	case errors.As(err, &refused) && refused.Code != standby:
		return true
	case r.Tries == 0:
		return true
	case errors.As(err, new(*SignError)), unreachable(err) && r.Pause > unreachablePause:
		return false
	case r.Final && errors.Is(err, unix.ECONNREFUSED):
		return true
	}
	return r.Tries != Forever && try >= r.Tries
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
