package node

import (
	"strings"
	"testing"

	"stepd/step"
)

func TestChoose(t *testing.T) {
	cands := func(free ...int) (out []candidate) {
		for i, f := range free {
			c := candidate{name: "n" + string(rune('1'+i)), free: f}
			if f < 0 {
				c.free, c.why = 0, "drained: x"
			}
			out = append(out, c)
		}
		return out
	}
	for _, c := range []struct {
		name  string
		req   step.Request
		cands []candidate
		want  string // names, or words of the error
		fails bool
	}{
		{name: "the first ones", req: step.Request{NNodes: 2, NTasks: 2}, cands: cands(4, 4, 4), want: "n1 n2"},
		{name: "drained and full ones are passed over", req: step.Request{NNodes: 2, NTasks: 2}, cands: cands(-1, 4, 0, 4), want: "n2 n4"},
		{name: "those with most room, in order", req: step.Request{NNodes: 2, NTasks: 11}, cands: cands(2, 8, 2, 4), want: "n2 n4"},
		{name: "as many as are needed", req: step.Request{NNodes: 2, NNodesMax: 4, NTasks: 10}, cands: cands(4, 4, 4, 4), want: "n1 n2 n3"},
		{name: "fewer nodes with more room", req: step.Request{NNodes: 1, NNodesMax: 4, NTasks: 10}, cands: cands(2, 2, 8, 4), want: "n3 n4"},
		{name: "named", req: step.Request{NNodes: 2, NTasks: 2, WantNodes: []string{"n3"}}, cands: cands(4, 4, 4), want: "n1 n3"},
		{name: "named alone", req: step.Request{NNodes: 1, NTasks: 2, WantNodes: []string{"n3"}}, cands: cands(4, 4, 4), want: "n3"},
		{name: "CPUs for each task", req: step.Request{NNodes: 1, NNodesMax: 3, NTasks: 2, CPUsPerTask: 3}, cands: cands(2, 4, 4), want: "n2 n3"},
		{name: "per node", req: step.Request{NNodes: 1, NNodesMax: 3, NTasks: 5, TasksPerNode: 2}, cands: cands(8, 8, 8), want: "n1 n2 n3"},
		{name: "overcommit", req: step.Request{NNodes: 2, NTasks: 99, Overcommit: true}, cands: cands(1, 1), want: "n1 n2"},
		{name: "named and drained", req: step.Request{NNodes: 1, NTasks: 1, WantNodes: []string{"n1"}}, cands: cands(-1, 4), want: "node n1: drained: x", fails: true},
		{name: "too few", req: step.Request{NNodes: 3, NTasks: 3}, cands: cands(4, -1, 0), want: "3 nodes are needed and 1 of 3 can be had (n2: drained: x; n3: 0 CPUs are free)", fails: true},
		{name: "no room", req: step.Request{NNodes: 2, NTasks: 9}, cands: cands(4, 4, 1), want: "9 tasks of 1 CPU each on 2 nodes", fails: true},
		{name: "none at all", req: step.Request{NNodes: 1, NTasks: 1}, want: "1 nodes are needed and 0 of 0", fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := choose(&c.req, c.cands)
			if c.fails {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, %v, want %q", got, err, c.want)
				}
				return
			}
			var names []string
			for _, x := range got {
				names = append(names, x.name)
			}
			if err != nil || strings.Join(names, " ") != c.want {
				t.Errorf("got %v, %v, want %q", names, err, c.want)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct{ n, groups, most int }{{0, 0, 0}, {1, 1, 1}, {16, 16, 1}, {17, 16, 2}, {4096, 16, 256}} {
		groups := split(make([]int, c.n), fanOut)
		all, most := 0, 0
		for _, g := range groups {
			all += len(g)
			most = max(most, len(g))
		}
		if len(groups) != c.groups || all != c.n || most != c.most {
			t.Errorf("%d: %d groups, %d in all, %d at most", c.n, len(groups), all, most)
		}
	}
}

func TestWithNode(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":1}`: `{"a":1,"node":"n1"}`, `{}`: `{"node":"n1"}`, `x`: `x`, ``: ``,
	} {
		if got := string(withNode([]byte(in), "n1")); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
