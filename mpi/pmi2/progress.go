package pmi2

import "stepd/step"

// note reports how far a rank has come, for clients that ask why a
// step hangs (launch.MPIJob.Progress). It is called for each change; the caller holds mu.
func (s *state) note(r *rank) {
	if s.tell == nil {
		return
	}
	p := step.MPIProgress{Fences: r.fences}
	switch r.speaks {
	case 1:
		p.Protocol = "PMI-1"
	case 2:
		p.Protocol = "PMI-2"
	}
	switch r.phase {
	case phaseNew:
		p.Phase = step.PhaseStarted
	case phaseHello:
		p.Phase = step.PhaseConnected
	case phaseFinalized:
		p.Phase = step.PhaseFinalized
	default:
		p.Phase = step.PhaseInitialized
	}
	switch {
	case r.phase == phaseFinalized:
	case r.entry != nil:
		p.Waiting = string(s.fence.kind) + " " + itoa(r.fences+1)
	case r.waits > 0:
		p.Waiting = "the node attribute " + quote(r.waitKey)
	}
	s.tell(r.n, p)
}
