package spec

import (
	"fmt"
	"slices"
	"testing"

	"stepd/slurm/wire"
	"stepd/step"
)

// TestWhole: ranks of MPI see all components, whose nodes are sorted by name.
func TestWhole(t *testing.T) {
	het := func(change func(*wire.Launch)) (*step.Spec, error) {
		s := launch()
		s.MPIType = "pmi2"
		l := s.Launch
		l.Het = wire.Het{Job: 6, NodeOffset: 2, Nodes: 3, Tasks: 5, Offset: 1, Steps: 2, TaskOffset: 3, Hosts: "a1,n[2-3]", Ranks: [][]uint32{{0}, {3, 4}, {1, 2}}}
		change(l)
		return Of(s, site1(t))
	}
	s, err := het(func(*wire.Launch) {})
	if err != nil {
		t.Fatal(err)
	}
	all := s.MPISpec()
	if all.ID.Job != 6 || all.ID.Step != s.ID.Step || all.NTasks != 5 || all.NodeID != 1 || len(all.Layout.Nodes) != 3 || !slices.Equal(all.LocalRanks(), []int{3, 4}) {
		t.Errorf("MPI sees %+v, %+v", all, all.Layout)
	}
	if want := fmt.Sprintf("6.%d.%d", s.ID.Step, s.User.UID); s.MPIKey() != want || all.MPIKey() != want {
		t.Errorf("the step's files are %q and %q, want %q: another user's step may be the job that the launch names", s.MPIKey(), all.MPIKey(), want)
	}
	if s.ID.Job != 7 || s.NTasks != 2 || s.NodeID != 0 || s.SeenNodeID() != 2 || s.Layout != nil {
		t.Errorf("the component is %+v", s)
	}
	if s, err := het(func(l *wire.Launch) { l.Het.Job = wire.NoVal }); err != nil || s.MPISpec().ID != s.ID {
		t.Errorf("a step of components in a job that is none: %+v, %v", s, err)
	}
	for name, change := range map[string]func(*wire.Launch){
		"another's ranks": func(l *wire.Launch) { l.Het.Ranks = [][]uint32{{0}, {1, 2}, {3, 4}} },
		"too few ranks":   func(l *wire.Launch) { l.Het.Ranks = [][]uint32{{0}, {3, 4}} },
		"a rank twice":    func(l *wire.Launch) { l.Het.Ranks = [][]uint32{{1}, {3, 4}, {1, 2}} },
		"another node":    func(l *wire.Launch) { l.Het.Hosts = "a[1-3]" },
		"no node list":    func(l *wire.Launch) { l.Het.Hosts = "a[" },
	} {
		if s, err := het(change); err == nil {
			t.Errorf("%s: %+v", name, s.AllLayout)
		}
	}
}
