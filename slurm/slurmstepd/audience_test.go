package slurmstepd

import (
	"slices"
	"testing"

	"stepd/slurm/wire"
)

// TestLaunchFailed: srun waits for each task of which it knows nothing, so that a launch that
// has failed names them all.
func TestLaunchFailed(t *testing.T) {
	m := failedLaunch(wire.StepID{Job: 12}, "n1", []int{2, 5}, launchFailed)
	if m.RC != launchFailed || m.Node != "n1" || !slices.Equal(m.Ranks, []uint32{2, 5}) || !slices.Equal(m.PIDs, []uint32{0, 0}) {
		t.Errorf("srun is sent %+v", m)
	}
}
