package node

import (
	"context"

	"stepd/api/stepapi"
	"stepd/step"
)

// liveStep is a step that has not ended, as its user sees it.
type liveStep interface {
	record() *step.Record
	end() <-chan struct{} // closed when it has ended
	signal(ctx context.Context, signal int, scope string) error
	cancel(ctx context.Context, reason string) error
	suspend(ctx context.Context, by uint32) error
	unsuspend(ctx context.Context, by uint32) error
}

var _ liveStep = (*follower)(nil)

// running returns the step that runs; nil is none.
func (n *Node) running(id step.ID) liveStep {
	if f := n.reg.follower(id); f != nil {
		return f
	}
	return nil
}

// endOf is closed when the step has ended; nil where it does not run.
func (n *Node) endOf(id step.ID) <-chan struct{} {
	if r := n.running(id); r != nil {
		return r.end()
	}
	return nil
}

func (f *follower) end() <-chan struct{} { return f.ended }

func (f *follower) signal(ctx context.Context, signal int, scope string) error {
	return f.ask(ctx, &stepapi.Msg{Type: stepapi.TypeSignal, Signal: signal, Scope: scope})
}
