package step

import (
	"fmt"
	"strings"
	"testing"
)

func dealNodes(cpus ...int) []DealNode {
	nodes := make([]DealNode, len(cpus))
	for i, n := range cpus {
		nodes[i] = DealNode{Name: fmt.Sprintf("n%d", i+1), CPUs: n}
	}
	return nodes
}

func dealText(ranks [][]int) string {
	words := make([]string, len(ranks))
	for i, r := range ranks {
		words[i] = FormatCPUList(r)
	}
	return strings.Join(words, " ")
}

func TestDealRanks(t *testing.T) {
	plane := func(n int) Distribution { return Distribution{Nodes: DistPlane, Plane: n} }
	for _, c := range []struct {
		name string
		d    Deal
		want string
	}{
		{"one node", Deal{Nodes: dealNodes(4), NTasks: 3}, "0-2"},
		// srun(1): four tasks on three nodes of two CPUs each.
		{"block of the manual", Deal{Nodes: dealNodes(2, 2, 2), NTasks: 4}, "0-1 2 3"},
		{"cyclic of the manual", Deal{Nodes: dealNodes(2, 2, 2), NTasks: 4, Distribution: Distribution{Nodes: DistCyclic}}, "0,3 1 2"},
		{"plane", Deal{Nodes: dealNodes(4, 4), NTasks: 7, Distribution: plane(2)}, "0-1,4-5 2-3,6"},
		{"plane of one is cyclic", Deal{Nodes: dealNodes(4, 4), NTasks: 5, Distribution: plane(1)}, "0,2,4 1,3"},
		{"block, uneven nodes", Deal{Nodes: dealNodes(1, 4, 2), NTasks: 7}, "0 1-4 5-6"},
		{"block, uneven nodes with room", Deal{Nodes: dealNodes(1, 8, 8), NTasks: 7}, "0 1-3 4-6"},
		{"cyclic, uneven nodes", Deal{Nodes: dealNodes(1, 4, 2), NTasks: 7, Distribution: Distribution{Nodes: DistCyclic}}, "0 1,3,5-6 2,4"},
		{"pack", Deal{Nodes: dealNodes(4, 4, 4), NTasks: 6, Distribution: Distribution{Pack: DistPack}}, "0-3 4 5"},
		{"pack, the first is small", Deal{Nodes: dealNodes(2, 4, 4), NTasks: 7, Distribution: Distribution{Nodes: DistBlock, Pack: DistPack}}, "0-1 2-5 6"},
		{"nopack", Deal{Nodes: dealNodes(4, 4, 4), NTasks: 6, Distribution: Distribution{Pack: DistNoPack}}, "0-1 2-3 4-5"},
		{"CPUs of a task", Deal{Nodes: dealNodes(2, 6), NTasks: 4, CPUsPerTask: 2}, "0 1-3"},
		{"overcommit", Deal{Nodes: dealNodes(1, 2), NTasks: 8, Overcommit: true}, "0-3 4-7"},
		{"overcommit, cyclic", Deal{Nodes: dealNodes(1, 3), NTasks: 6, Overcommit: true, Distribution: Distribution{Nodes: DistCyclic}}, "0,4 1-3,5"},
		{"overcommit, pack", Deal{Nodes: dealNodes(2, 2), NTasks: 7, Overcommit: true, Distribution: Distribution{Pack: DistPack}}, "0-3 4-6"},
		{"overcommit, a task takes more than a node", Deal{Nodes: dealNodes(1, 4), NTasks: 3, CPUsPerTask: 2, Overcommit: true}, "0 1-2"},
		{"overcommit, plane", Deal{Nodes: dealNodes(1, 1), NTasks: 6, Overcommit: true, Distribution: plane(3)}, "0-2 3-5"},
		{"per node", Deal{Nodes: dealNodes(8, 8), NTasks: 4, PerNode: 2}, "0-1 2-3"},
		{"per node, pack", Deal{Nodes: dealNodes(8, 8), NTasks: 5, PerNode: 3, Distribution: Distribution{Pack: DistPack}}, "0-2 3-4"},
		{"per node, overcommit", Deal{Nodes: dealNodes(1, 8), NTasks: 6, PerNode: 3, Overcommit: true}, "0-2 3-5"},
		{"as many tasks as nodes", Deal{Nodes: dealNodes(9, 1, 9), NTasks: 3, Distribution: Distribution{Pack: DistPack}}, "0 1 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks, err := DealRanks(c.d)
			if err != nil {
				t.Fatal(err)
			}
			if got := dealText(ranks); got != c.want {
				t.Errorf("ranks %q, want %q", got, c.want)
			}
			l := &Layout{}
			for i, r := range ranks {
				l.Nodes = append(l.Nodes, LayoutNode{Name: c.d.Nodes[i].Name, Ranks: FormatCPUList(r)})
			}
			if err := l.Check(0, c.d.NTasks); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDealRanksRefuses(t *testing.T) {
	for _, c := range []struct {
		d    Deal
		want string
	}{
		{Deal{NTasks: 1}, "to 0 nodes"},
		{Deal{Nodes: dealNodes(1, 1), NTasks: 1}, "each node needs one at least"},
		{Deal{Nodes: dealNodes(1, 2), NTasks: 4}, "the CPUs of nodes n1, n2 are for 3; --overcommit"},
		{Deal{Nodes: dealNodes(4, 1), NTasks: 2, CPUsPerTask: 2}, `node "n2": a task takes 2 CPUs, and it has 1`},
		{Deal{Nodes: dealNodes(4, 4), NTasks: 5, PerNode: 2}, "--ntasks-per-node=2 lets them have 4"},
		{Deal{Nodes: dealNodes(4, 4), NTasks: 3, Distribution: Distribution{Nodes: DistArbitrary}}, "arbitrary"},
		{Deal{Nodes: dealNodes(4, 4), NTasks: 3, Distribution: Distribution{Nodes: "round"}}, "round"},
		{Deal{Nodes: dealNodes(4, 4, 4), NTasks: 4, Distribution: Distribution{Nodes: DistPlane, Plane: 2}}, "the first 2 nodes get them all"},
		{Deal{Nodes: dealNodes(2, 8), NTasks: 6, Distribution: Distribution{Nodes: DistPlane, Plane: 3}}, `node "n1" would get 3, and its 2 CPUs are for 2`},
		{Deal{Nodes: dealNodes(8, 8), NTasks: 7, PerNode: 4, Distribution: Distribution{Nodes: DistPlane, Plane: 5}}, "would get 5, and --ntasks-per-node is 4"},
		{Deal{Nodes: dealNodes(8, 8), NTasks: 4, Distribution: Distribution{Nodes: DistPlane}}, "planes of 0"},
		{Deal{Nodes: dealNodes(1, 1, 1, 1, 1, 1), NTasks: 9}, "n4, 2 more are for 6"},
	} {
		if ranks, err := DealRanks(c.d); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, %v, want %q", c.d, ranks, err, c.want)
		}
	}
}

func FuzzDealRanks(f *testing.F) {
	f.Add(uint8(3), uint8(5), uint8(2), uint8(0), uint8(1), uint8(0), true)
	f.Fuzz(func(t *testing.T, nodes, ntasks, cpus, perNode, perTask, how uint8, over bool) {
		d := Deal{NTasks: int(ntasks), CPUsPerTask: int(perTask), PerNode: int(perNode), Overcommit: over}
		for i := range int(nodes) {
			d.Nodes = append(d.Nodes, DealNode{Name: "n", CPUs: (int(cpus) + i) % 7})
		}
		d.Distribution = []Distribution{{}, {Nodes: DistCyclic}, {Nodes: DistPlane, Plane: 2}, {Pack: DistPack}}[how%4]
		ranks, err := DealRanks(d)
		if err != nil {
			return
		}
		l := &Layout{}
		for _, r := range ranks {
			if len(r) < 1 || d.PerNode > 0 && len(r) > d.PerNode {
				t.Fatalf("%+v: a node has %d tasks", d, len(r))
			}
			l.Nodes = append(l.Nodes, LayoutNode{Ranks: FormatCPUList(r)})
		}
		if err := l.Check(0, d.NTasks); err != nil {
			t.Fatalf("%+v: %v", d, err)
		}
	})
}
