package step

import (
	"slices"
	"testing"
)

func TestGroupProgress(t *testing.T) {
	one := &MPIProgress{Phase: PhaseInitialized, Fences: 1}
	same := &MPIProgress{Phase: PhaseInitialized, Fences: 1}
	far := &MPIProgress{Phase: PhaseFinalized, Fences: 3}
	groups := GroupProgress([]Task{{Rank: 0, MPI: far}, {Rank: 1, MPI: one}, {Rank: 4, MPI: same}, {Rank: 5}})
	want := []struct {
		ranks []int
		text  string
	}{
		{[]int{5}, "has not called init"},
		{[]int{1, 4}, "has called init, has come through 1 fence"},
		{[]int{0}, "has called finalize, has come through 3 fences"},
	}
	if len(groups) != len(want) {
		t.Fatalf("got %v", groups)
	}
	for i, w := range want {
		if g := groups[i]; !slices.Equal(g.Ranks, w.ranks) || g.MPI.String() != w.text {
			t.Errorf("group %d: got %v %q, want %v %q", i, g.Ranks, g.MPI, w.ranks, w.text)
		}
	}
}

func TestDoing(t *testing.T) {
	for _, c := range []struct {
		d    Doing
		want string
	}{
		{Doing{PID: 7, Command: "a\nb", State: "T"}, `pid 7: "a\nb", stopped by a signal`},
		{Doing{PID: 7, Command: "a", State: "S", Wchan: "futex_wait_queue"}, `pid 7: "a", sleeps in futex_wait_queue`},
		{Doing{PID: 7, State: "S", Plugin: "x.so", Hook: "slurm_spank_init", HookTime: 1500e6}, `pid 7: sleeps, in slurm_spank_init of plugin "x.so" for 1.5s`},
		{Doing{PID: 7, State: "?", Stage: "gate"}, `pid 7: at its stage gate`},
	} {
		if got := c.d.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
