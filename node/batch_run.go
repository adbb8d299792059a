package node

import "time"

// shareRun tells a run of a batch job of several nodes from the job's other runs, and from
// another job of that number. What nodes say of a share they say of one run: a message may
// come late, and the job has other shares by then.
type shareRun struct {
	Submitted time.Time `json:"submitted"`
	Restarts  uint32    `json:"restarts,omitempty"`
	// Asked is when the head asked for the shares: not every try to start a run succeeds.
	Asked time.Time `json:"asked,omitzero"`
}

// is tells whether both are one run. What is nil may be any: an older noded's, or of no
// batch job.
func (r *shareRun) is(other *shareRun) bool {
	return r == nil || other == nil || r.Submitted.Equal(other.Submitted) && r.Restarts == other.Restarts && r.Asked.Equal(other.Asked)
}

// follows tells whether old is known to be an earlier run of the same job, or an earlier try.
func (r *shareRun) follows(old *shareRun) bool {
	switch {
	case r == nil || old == nil || !r.Submitted.Equal(old.Submitted):
		return false
	case r.Restarts != old.Restarts:
		return r.Restarts > old.Restarts
	}
	return r.Asked.After(old.Asked)
}
