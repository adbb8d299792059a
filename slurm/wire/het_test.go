package wire

import (
	"bytes"
	"reflect"
	"testing"
)

// TestHeterogeneous has the second component of a heterogeneous job's step, and of a step that
// has two components in a job that is none, as slurmds have sent them.
func TestHeterogeneous(t *testing.T) {
	for _, release := range []string{"22.05", "24.11", "26.05"} {
		for name, want := range map[string]Het{
			"het.stream":     {NodeOffset: 1, Nodes: 2, Tasks: 3, Offset: 1, Steps: 2, TaskOffset: 1, Hosts: "n[1-2]", Ranks: [][]uint32{{0}, {1, 2}}},
			"hetstep.stream": {NodeOffset: 1, Job: NoVal, Nodes: 2, Tasks: 2, Offset: 1, Steps: 2, TaskOffset: 1, Hosts: "n[1-2]", Ranks: [][]uint32{{0}, {1}}},
		} {
			file := release + "/" + name
			s, err := ReadStream(bytes.NewReader(captured(t, file)[file]))
			if err != nil {
				t.Errorf("%s: %v", file, err)
				continue
			}
			l := s.Launch
			if want.Job != NoVal {
				want.Job = l.Step.Job - 1
			}
			if !reflect.DeepEqual(l.Het, want) || !l.Het.Several() || (l.Step.HetComp == 1) != (want.Job == NoVal) || l.Hosts != "n2" || int(l.Tasks) != len(l.Ranks[0]) {
				t.Errorf("%s: %+v, %+v, nodes %q, tasks %v", file, l.Step, l.Het, l.Hosts, l.Ranks)
			}
		}
	}
}
