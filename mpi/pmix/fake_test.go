package pmix

import (
	"net"
	"strings"
	"sync"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

// aborted is a call of Abort.
type aborted struct {
	rank, code int
	text       string
}

// told is what the plugin said to stepd.
type told struct {
	mu       sync.Mutex
	aborts   []aborted
	log      []string
	progress map[int]step.MPIProgress
}

func (k *told) job(spec *step.Spec) launch.MPIJob {
	k.progress = make(map[int]step.MPIProgress)
	return launch.MPIJob{
		Spec: spec,
		Abort: func(rank, code int, text string) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.aborts = append(k.aborts, aborted{rank, code, text})
		},
		Log: func(text string) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.log = append(k.log, text)
		},
		Progress: func(rank int, p step.MPIProgress) {
			k.mu.Lock()
			defer k.mu.Unlock()
			k.progress[rank] = p
		},
	}
}

func testSpec(n int) *step.Spec {
	spec := &step.Spec{ID: step.ID{Job: 12, Step: 3}, NodeName: "n0"}
	spec.NTasks = n
	return spec
}

// unstarted is a plugin of 4 ranks whose host swallows all that it is sent.
func unstarted(t testing.TB) *Plugin {
	ours, theirs := net.Pipe()
	theirs.Close()
	p := New(Config{})
	k := &told{}
	p.rankBook = newRankBook(p.ctx, k.job(testSpec(4)), false)
	p.conf = p.conf.withDefaults(p.job.Spec)
	p.names, p.others, p.budget = newNames(p), newOthers(), newBudget(p.world.size)
	p.host = newHost(ours)
	p.host.end()
	t.Cleanup(func() { p.stop(); p.running.Wait(); ours.Close() })
	return p
}

// wantAbort checks that the step was ended once, and why.
func wantAbort(t *testing.T, k *told, rank, code int, words ...string) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.aborts) != 1 {
		t.Fatalf("aborts: %+v, want one; log %q", k.aborts, k.log)
	}
	got := k.aborts[0]
	if got.rank != rank || got.code != code {
		t.Errorf("abort by rank %d with code %d, want rank %d, code %d", got.rank, got.code, rank, code)
	}
	for _, word := range words {
		if !strings.Contains(got.text, word) {
			t.Errorf("abort says %q, which lacks %q", got.text, word)
		}
	}
}
