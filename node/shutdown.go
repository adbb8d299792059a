package node

import (
	"context"
	"fmt"

	"stepd/step"
)

// EndAll takes no more requests, cancels every step and allocation, and
// returns when nothing is left of them, or with ctx's cause.
func (n *Node) EndAll(ctx context.Context, reason string) error {
	n.gate.Close()
	jobs := n.reg.all()
	for _, j := range jobs {
		if j.Origin == step.OriginAlloc {
			n.endAlloc(j, reason)
		}
	}
	for _, f := range n.reg.followers() {
		n.cancelLater(f, reason)
	}
	for _, j := range jobs {
		select {
		case <-j.ended:
		case <-ctx.Done():
			return fmt.Errorf("cannot wait for the end of job %d: %w", j.ID, context.Cause(ctx))
		}
	}
	return nil
}
