package pmi2

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"stepd/step"
)

// TestProgress: each change of a rank is told, in its order.
func TestProgress(t *testing.T) {
	w := newWorld(t, 2, step.PMI2Conf{})
	a, b := w.ranks[0], w.ranks[1].init2()
	b.say("cmd=info-getnodeattr;thrid=1;key=a;wait=TRUE;")
	a.init1().say("cmd=barrier_in")
	for deadline := time.Now().Add(10 * time.Second); len(w.told(0)) < 2 && time.Now().Before(deadline); {
		runtime.Gosched() // rank 0 is to be the first in the fence
	}
	b.say("cmd=kvs-fence;thrid=2;")
	a.want("cmd=barrier_out rc=0")
	a.ask("cmd=finalize", "cmd=finalize_ack rc=0")
	w.plugin.Close()
	want := map[int][]string{
		0: {
			"has called init (PMI-1)", "has called init (PMI-1), waits in fence 1", "has called init (PMI-1), has come through 1 fence",
			"has called finalize (PMI-1), has come through 1 fence",
		},
		1: {
			"is connected and has not finished init (PMI-2)", "has called init (PMI-2)", `has called init (PMI-2), waits for the node attribute "a"`,
			`has called init (PMI-2), has come through 1 fence, waits for the node attribute "a"`,
		},
	}
	for rank := range want {
		if got := w.told(rank); !slices.Equal(got, want[rank]) {
			t.Errorf("rank %d:\n got %q\nwant %q", rank, got, want[rank])
		}
	}
}

// told is what was reported about a rank.
func (w *world) told(rank int) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.progress[rank])
}
