package tree

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/slurm/socket"
	"stepd/slurm/wire"
)

// stepOf is the stream of a step of so many nodes.
func stepOf(nodes uint32, place wire.Tree) *wire.Stream {
	return &wire.Stream{Launch: &wire.Launch{Nodes: nodes}, Tree: place}
}

func TestInTree(t *testing.T) {
	root := wire.Tree{Parent: -1, Children: 31, MaxDepth: 2}
	for nodes, want := range map[uint32]bool{1: false, 32: false, 33: true} {
		if got := New(stepOf(nodes, root), nil) != nil; got != want {
			t.Errorf("%d nodes: %v", nodes, got)
		}
	}
	if New(stepOf(100, wire.Tree{Rank: 9, Parent: 1}), nil) != nil {
		t.Error("a leaf waits for nodes")
	}
	if New(&wire.Stream{Batch: new(wire.Batch), Tree: root}, nil) != nil {
		t.Error("a batch script waits for nodes")
	}
	// As Slurm: 60 s, and 3 s for each level below.
	if got := New(stepOf(100, root), nil).patience; got != 66*time.Second {
		t.Errorf("waits for %v", got)
	}
}

// used is a packed usage of a node.
func used(node uint32, cpu, memory uint64) (*wire.Usage, []byte) {
	u := wire.NewUsage([]wire.TRES{{ID: wire.TRESCPU}, {ID: wire.TRESMemory}})
	u.User = time.Second
	for i, v := range []uint64{cpu, memory} {
		u.TRES[i].In = wire.Figures{Max: v, MaxNode: uint64(node), MaxTask: uint64(node), Min: v, MinNode: uint64(node), MinTask: uint64(node), Total: v}
	}
	return u, wire.PackUsage(u)
}

// say is a list of ends in words.
func say(ends []*wire.StepComplete) string {
	var words []string
	for _, e := range ends {
		words = append(words, fmt.Sprintf("%d-%d rc %d used %v", e.First, e.Last, e.RC, e.Usage != nil))
	}
	return strings.Join(words, ", ")
}

func TestGather(t *testing.T) {
	own := func() *wire.StepComplete {
		u, _ := used(1, 10, 100)
		return &wire.StepComplete{First: 1, Last: 1, Usage: u}
	}
	for _, c := range []struct {
		name    string
		ends    [][3]uint32 // first, last, status
		stop    bool
		want    string
		missing int
	}{
		{name: "all", ends: [][3]uint32{{4, 7, 0}, {2, 3, 256}}, want: "1-7 rc 256 used true"},
		{name: "twice", ends: [][3]uint32{{2, 4, 0}, {2, 4, 0}, {5, 7, 9}}, want: "1-7 rc 9 used true"},
		{name: "none", want: "1-1 rc 0 used true", missing: 6},
		{name: "gap", ends: [][3]uint32{{3, 4, 1}, {7, 7, 2}}, want: "1-1 rc 2 used true, 3-4 rc 2 used false, 7-7 rc 2 used false", missing: 3},
		{name: "given up", ends: [][3]uint32{{2, 2, 1}}, stop: true, want: "1-2 rc 1 used true", missing: 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			noted := map[int]uint32{}
			tr := New(stepOf(64, wire.Tree{Rank: 1, Children: 6, Depth: 1, MaxDepth: 2}), func(i int, rc uint32) { noted[i] = rc })
			tr.patience = 10 * time.Millisecond
			if c.stop || c.missing == 0 {
				tr.patience = time.Hour
			}
			for _, e := range c.ends {
				_, packed := used(e[0], 5, 50)
				mustDo(t, tr.Add(&socket.NodesEnd{First: e[0], Last: e[1], RC: e[2], Usage: packed}))
			}
			if c.stop {
				tr.GiveUp()
			}
			waited := false
			ends, missing := tr.Gather(t.Context(), own(), func() { waited = true })
			if got := say(ends); got != c.want || missing != c.missing || waited != (c.missing > 0 && !c.stop) {
				t.Errorf("got %s, %d missing, waited %v; want %s, %d", got, missing, waited, c.want, c.missing)
			}
			if len(noted) != 6-c.missing {
				t.Errorf("noted %v", noted)
			}
			if err := tr.Add(&socket.NodesEnd{First: 2, Last: 2, Usage: []byte{0}}); !errors.Is(err, errReported) {
				t.Errorf("too late: %v", err)
			}
		})
	}
}

func TestGatherUsage(t *testing.T) {
	tr := New(stepOf(64, wire.Tree{Children: 2}), func(int, uint32) {})
	for _, n := range []uint32{1, 2} {
		_, packed := used(n, uint64(10*n), uint64(100/n))
		mustDo(t, tr.Add(&socket.NodesEnd{First: n, Last: n, Usage: packed}))
	}
	u, _ := used(0, 15, 70)
	ends, _ := tr.Gather(t.Context(), &wire.StepComplete{Usage: u}, func() {})
	got := ends[0].Usage
	want := []wire.Figures{
		{Max: 20, MaxNode: 2, MaxTask: 2, Min: 10, MinNode: 1, MinTask: 1, Total: 45},
		{Max: 100, MaxNode: 1, MaxTask: 1, Min: 50, MinNode: 2, MinTask: 2, Total: 220},
	}
	for i, w := range want {
		if got.TRES[i].In != w || got.TRES[i].Out.Total != wire.Infinite64 {
			t.Errorf("resource %d: %+v", i, got.TRES[i])
		}
	}
	if got.User != 3*time.Second {
		t.Errorf("%v of CPU", got.User)
	}
}

func TestTreeRefuses(t *testing.T) {
	tr := New(stepOf(64, wire.Tree{Rank: 3, Children: 4}), func(int, uint32) { t.Error("taken") })
	for _, e := range []socket.NodesEnd{
		{First: 3, Last: 4, Usage: []byte{0}}, {First: 4, Last: 8, Usage: []byte{0}}, {First: 6, Last: 5, Usage: []byte{0}},
		{First: 4, Last: 0xffffffff, Usage: []byte{0}}, {First: 4, Last: 4}, {First: 4, Last: 4, Usage: []byte{1}},
	} {
		if err := tr.Add(&e); err == nil {
			t.Errorf("took %+v", e)
		}
	}
	if slices.Contains(tr.ended, true) {
		t.Error(tr.ended)
	}
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
