package slurmstepd

import (
	"maps"
	"slices"
	"testing"

	"stepd/slurm/wire"
	"stepd/step"
	"stepd/stepd/report"
)

// TestLaunchFailed: srun waits for each task of which it knows nothing, so that a launch that
// has failed names them all.
func TestLaunchFailed(t *testing.T) {
	m := failedLaunch(wire.StepID{Job: 12}, "n1", []int{2, 5}, launchFailed)
	if m.RC != launchFailed || m.Node != "n1" || !slices.Equal(m.Ranks, []uint32{2, 5}) || !slices.Equal(m.PIDs, []uint32{0, 0}) {
		t.Errorf("srun is sent %+v", m)
	}
}

// TestEndsAfterHost: when the SPANK host dies, no task's end is told while the step runs, and
// srun waits for each.
func TestEndsAfterHost(t *testing.T) {
	told := map[int]step.ExitStatus{}
	a := &audience{ends: report.NewEnds(func(ranks []int, status step.ExitStatus) {
		for _, r := range ranks {
			if _, twice := told[r]; twice {
				t.Errorf("the end of rank %d is told twice", r)
			}
			told[r] = status
		}
	})}
	seven := step.ExitedWith(7)
	a.TaskExited(4, seven)
	a.endOthers(&step.Record{Tasks: []step.Task{{Rank: 4, Status: &seven}, {Rank: 5, Status: &seven}, {Rank: 6}}})
	a.ends.Tell()
	if want := map[int]step.ExitStatus{4: seven, 5: seven, 6: killed}; !maps.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
