package task

import (
	"slices"
	"testing"
)

// TestMoves holds that an illegal move changes nothing and names both states, and that each
// state of a table can be reached.
func TestMoves(t *testing.T) {
	checkMoves(t, hostMoves, hostAbsent)
	checkMoves(t, taskMoves, taskForked)
	checkMoves(t, suspendMoves, launching)
	got, err := taskMoves.move("task 3", taskEnded, taskExeced)
	if got != taskEnded || err == nil || err.Error() != `internal error: task 3 cannot go from "ended" to "execed"` {
		t.Errorf("got %q, %v", got, err)
	}
}

func checkMoves[S ~string](t *testing.T, table moves[S], first S) {
	t.Helper()
	reached := []S{first}
	for i := 0; i < len(reached); i++ {
		for _, to := range table[reached[i]] {
			if got, err := table.move("it", reached[i], to); got != to || err != nil {
				t.Errorf("from %q: %q, %v", reached[i], got, err)
			}
			if !slices.Contains(reached, to) {
				reached = append(reached, to)
			}
		}
	}
	for from := range table {
		if !slices.Contains(reached, from) {
			t.Errorf("no way leads to %q", from)
		}
	}
}
