package jobcontainer

import (
	"context"

	"stepd/step"
	"stepd/step/launch"
)

// None is job_container/none: jobs share the node's directories. The zero
// value is ready; every method succeeds and does nothing.
type None struct{}

// Create does nothing.
func (None) Create(context.Context, uint32, step.User) error { return nil }

// Join reports that there is nothing to join.
func (None) Join(uint32) (launch.Namespaces, error) { return launch.Namespaces{}, nil }

// AddCont does nothing.
func (None) AddCont(uint32, uint64) error { return nil }

// AddPID does nothing.
func (None) AddPID(uint32, int, uint32) error { return nil }

// Delete does nothing.
func (None) Delete(context.Context, uint32) error { return nil }

// Restore does nothing.
func (None) Restore(context.Context, []uint32) error { return nil }

// Fini does nothing.
func (None) Fini() error { return nil }
