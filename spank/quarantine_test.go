package spank

import (
	"slices"
	"testing"

	"stepd/step"
)

func TestLeaveOut(t *testing.T) {
	s := Stack{Plugins: []Plugin{{Path: "/a.so"}, {Path: "/b.so", Required: true}, {Path: "/a.so", Args: []string{"x"}}, {Path: "/c.so"}}}
	conf := &step.SpankConf{Quarantined: []step.Quarantine{{Path: "/b.so", Times: 2}, {Path: "/a.so", Times: 3, Hook: "slurm_spank_init"}}}
	lines := s.LeaveOut(conf)
	want := []string{`spank: optional plugin "a.so" is left out: it crashed 3 times in a row, last in slurm_spank_init; stepctl node resume takes it in again`}
	if !slices.Equal(lines, want) {
		t.Errorf("lines %q, want %q", lines, want)
	}
	if len(s.Plugins) != 2 || s.Plugins[0].Path != "/b.so" || s.Plugins[1].Path != "/c.so" {
		t.Errorf("left %+v", s.Plugins)
	}
}
