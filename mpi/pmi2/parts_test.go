package pmi2

import "testing"

// A node's share has each of its ranks once, in their order: nothing else is used.
func TestParseParts(t *testing.T) {
	s := &state{where: layout{names: []string{"a", "b"}, of: []int{0, 1, 1}}}
	of := func(ranks ...int) []byte {
		sh := share{kind: kindFence}
		for _, r := range ranks {
			sh.ranks = append(sh.ranks, rankShare{n: r})
		}
		return sh.encode()
	}
	left := (&share{kind: kindLeft, left: &leftShare{ranks: []int{1}, first: 1}}).encode()
	for _, c := range []struct {
		name  string
		parts [][]byte
		ok    bool
	}{
		{"all", [][]byte{of(0), of(1, 2)}, true},
		{"one that has left", [][]byte{of(0), left}, true},
		{"a rank is missing", [][]byte{of(0), of(1)}, false},
		{"no ranks", [][]byte{of(), of(1, 2)}, false},
		{"twice", [][]byte{of(0), of(1, 1)}, false},
		{"not in order", [][]byte{of(0), of(2, 1)}, false},
		{"another node's", [][]byte{of(1), of(1, 2)}, false},
		{"none of the step's", [][]byte{of(0), of(1, 3)}, false},
		{"cut", [][]byte{of(0), of(1, 2)[:3]}, false},
	} {
		if _, err := s.parseParts(c.parts); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
