package step

import (
	"slices"
	"strings"
	"testing"
)

func TestLayout(t *testing.T) {
	s := &Spec{Request: Request{NTasks: 5}, NodeID: 1, Layout: &Layout{Nodes: []LayoutNode{{Name: "a", Ranks: "0,2-3"}, {Name: "b", Ranks: "1,4"}}}}
	if err := s.Layout.Check(1, 5); err != nil {
		t.Error(err)
	}
	if got := s.LocalRanks(); !slices.Equal(got, []int{1, 4}) || s.LocalTasks() != 2 {
		t.Errorf("local ranks %v", got)
	}
	if got := s.RankNodes(); !slices.Equal(got, []int{0, 1, 0, 0, 1}) {
		t.Errorf("nodes of the ranks %v", got)
	}
	if got := s.TaskCounts(); !slices.Equal(got, []int{3, 2}) {
		t.Errorf("counts %v", got)
	}
	if n := s.NodeCount(); n != 2 {
		t.Errorf("%d nodes", n)
	}
	one := &Spec{Request: Request{NTasks: 3}}
	if !slices.Equal(one.LocalRanks(), []int{0, 1, 2}) || one.NodeCount() != 1 || one.LocalTasks() != 3 || !slices.Equal(one.TaskCounts(), []int{3}) || !slices.Equal(one.RankNodes(), []int{0, 0, 0}) {
		t.Error("one node")
	}
	for _, c := range []struct {
		ranks  [2]string
		node   uint32
		ntasks int
		want   string
	}{
		{[2]string{"0", "0"}, 0, 2, "rank 1 is nowhere, or rank 0 twice"},
		{[2]string{"0", "2"}, 0, 2, "rank 1 is nowhere"},
		{[2]string{"0", "1"}, 0, 3, "2 of 3 ranks"},
		{[2]string{"0", "1"}, 2, 2, "2 nodes for node 2"},
		{[2]string{"0", "x"}, 0, 2, `node 1 ("b")`},
	} {
		l := &Layout{Nodes: []LayoutNode{{Name: "a", Ranks: c.ranks[0]}, {Name: "b", Ranks: c.ranks[1]}}}
		if err := l.Check(c.node, c.ntasks); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.ranks, err, c.want)
		}
	}
}
