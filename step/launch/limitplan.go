package launch

import (
	"stepd/step"
)

// LimitPlan is what confines a step and its job. noded decides it before it writes
// anything, so that --dry-run can show it, and carries it out before the step's stepd
// starts.
type LimitPlan struct {
	// Writes are the writes for job and step in their order. The writes for
	// single tasks are TaskWrites, with %t for the rank.
	Writes     []step.CgroupWrite
	TaskWrites []step.CgroupWrite
	// V1 are the v1 controllers in which the step needs directories.
	V1 []string
	// Confine is the part that stepd carries out.
	Confine step.Confinement
	// Notes name the limits of the configuration that this node cannot enforce.
	Notes []string
}
