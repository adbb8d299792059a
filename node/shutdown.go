package node

import (
	"context"
	"fmt"

	"stepd/step"
)

// EndAll takes no more requests, cancels every step and allocation, and
// returns when nothing is left of them, or with ctx's cause.
func (n *Node) EndAll(ctx context.Context, reason string) error {
	n.reg.close()
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

// all returns the jobs that are running or ending.
func (r *registry) all() []*job {
	r.mu.Lock()
	defer r.mu.Unlock()
	jobs := make([]*job, 0, len(r.jobs))
	for _, j := range r.jobs {
		jobs = append(jobs, j)
	}
	return jobs
}
