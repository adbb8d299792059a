package selection

import (
	"slices"
	"strings"
	"testing"
)

func TestPoolTake(t *testing.T) {
	for _, tc := range []struct {
		name       string
		held       [][]int
		want       int
		overcommit bool
		got        []int
		says       string // the refusal
	}{
		{"lowest first", nil, 2, false, []int{0, 2}, ""},
		{"beside another job", [][]int{{0}}, 2, false, []int{2, 3}, ""},
		{"all of it", nil, 4, false, []int{0, 2, 3, 5}, ""},
		{"more than there are", nil, 5, false, nil, "needs 5 CPUs on this node, which has 4 CPUs"},
		{"more than are free", [][]int{{0}, {2, 3}}, 2, false, nil, "needs 2 CPUs on this node: of its 4 CPUs 1 are free"},
		{"overcommit takes free ones first", [][]int{{0, 2}}, 2, true, []int{3, 5}, ""},
		{"overcommit shares", [][]int{{0, 2, 3, 5}, {3}}, 2, true, []int{0, 2}, ""},
		{"overcommit takes each once", nil, 100, true, []int{0, 2, 3, 5}, ""},
		{"what the node has no more does not count", [][]int{{7, 9}}, 4, false, []int{0, 2, 3, 5}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newCPUPool([]int{0, 2, 3, 5})
			for _, h := range tc.held {
				p.hold(h)
			}
			before := p.free()
			got, err := p.take(tc.want, tc.overcommit, nil)
			if tc.says != "" {
				if err == nil || !strings.Contains(err.Error(), tc.says) || !strings.Contains(err.Error(), "--overcommit") {
					t.Fatalf("got %v, %v; want a refusal with %q", got, err, tc.says)
				}
				if p.free() != before {
					t.Error("a refused take has taken something")
				}
				return
			}
			if err != nil || !slices.Equal(got, tc.got) {
				t.Fatalf("got %v, %v; want %v", got, err, tc.got)
			}
			p.hold(got)
			p.release(got)
			if p.free() != before {
				t.Errorf("%d CPUs free after release, %d before it", p.free(), before)
			}
		})
	}
}
