package pmi2

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"stepd/step"
)

// Whatever the ranks store and replace, refusals included:
// the charges match what is stored.
func TestStateCharges(t *testing.T) {
	const n = 3
	conf := step.PMI2Conf{KeysPerRank: 6, TotalBytes: 8 * (entryOverhead + 20), ValueBytes: 40}
	var st *state
	random := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for i := range 20000 {
		if i%100 == 0 { // again from nothing: attributes are never withdrawn
			st = newState(testSpec(n), withDefaults(conf))
			for rankN := range n {
				st.ranks = append(st.ranks, &rank{n: rankN, phase: phaseReady, speaks: 1})
			}
		}
		r := st.ranks[random.IntN(n)]
		key, text := fmt.Sprint("k", random.IntN(8)), fmt.Sprintf("%0*d", random.IntN(50), 0)
		var why *refusal
		switch random.IntN(12) {
		default:
			why = st.put(r, key, text)
		case 1:
			_, why = st.putAttr(r, key, text)
		case 4:
			st.commit(r)
		}
		if why != nil {
			refused++
		}
		checkCharges(t, st)
	}
	if refused == 0 || refused == 20000 {
		t.Errorf("%d of 20000 were refused: the limits were not met", refused)
	}
}

func checkCharges(t *testing.T, st *state) {
	t.Helper()
	bytes, keys := 0, make(map[*rank]int)
	for _, in := range []map[string]value{st.kvs, st.attrs} {
		for key, v := range in {
			bytes += charge(key, v.text)
			keys[v.owner]++
		}
	}
	for _, r := range st.ranks {
		for key, text := range r.pending {
			bytes += charge(key, text)
			keys[r]++
		}
	}
	for _, r := range st.ranks {
		if r.keys != keys[r] || r.keys > st.conf.KeysPerRank {
			t.Fatalf("rank %d is charged for %d keys and holds %d", r.n, r.keys, keys[r])
		}
	}
	if st.bytes != bytes || st.bytes > st.conf.TotalBytes {
		t.Fatalf("%d bytes are charged, %d stored", st.bytes, bytes)
	}
}

// A rank that ended waits for nothing any more.
func TestStateForgets(t *testing.T) {
	st := newState(testSpec(2), withDefaults(step.PMI2Conf{}))
	for i := range 2 {
		st.ranks = append(st.ranks, &rank{n: i, phase: phaseReady, speaks: 2})
	}
	for _, key := range []string{"a", "b"} {
		for _, r := range st.ranks {
			if answer, why := st.getAttr(r, message{cmd: "info-getnodeattr"}, key, true); answer != nil || why != nil {
				t.Fatalf("got %q, %v", answer, why)
			}
		}
	}
	st.ended(st.ranks[0], step.ExitedWith(1))
	out, _ := st.putAttr(st.ranks[1], "a", "x")
	if len(out.deliveries) != 1 || out.deliveries[0].to != st.ranks[1] {
		t.Errorf("deliveries %+v", out.deliveries)
	}
	if len(st.waits) != 1 || len(st.waits["b"]) != 1 || st.ranks[0].waits != 0 || st.ranks[1].waits != 1 {
		t.Errorf("waits %+v", st.waits)
	}
}

// A rank's descriptor is given back when its task has ended, not at the end of
// the step.
func TestDescriptorsAreGivenBack(t *testing.T) {
	w := newWorld(t, 50, step.PMI2Conf{})
	before := openFDs()
	for rank := range w.ranks {
		w.exit(rank, 0)
	}
	for deadline := time.Now().Add(10 * time.Second); openFDs() > before-2*len(w.ranks); {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors before, %d after 50 ranks ended: want 100 fewer", before, openFDs())
		}
		runtime.Gosched()
	}
	w.wantQuiet()
}
