package node

import (
	"context"

	"stepd/step"
)

// createContainer makes the job's container, or finds it made.
func (n *Node) createContainer(ctx context.Context, j *job, user step.User) error {
	return n.cfg.Containers.Create(ctx, j.ID, user)
}
