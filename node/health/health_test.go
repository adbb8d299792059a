package health

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/api"
	"stepd/node/state"
	"stepd/step"
)

// fresh is the health of a node where all processes of steps live until die is closed.
func fresh(t *testing.T, die <-chan struct{}) *Health {
	t.Helper()
	dir := t.TempDir()
	log := logrus.New()
	log.SetOutput(t.Output())
	spool, run := filepath.Join(dir, "spool"), filepath.Join(dir, "run")
	if err := errors.Join(os.Mkdir(spool, 0o711), os.Mkdir(run, 0o755)); err != nil {
		t.Fatal(err)
	}
	store, err := state.Open(state.Config{
		Spool: spool, Run: run, Boot: "boot", KeepAge: time.Minute, KeepSteps: 10, Deadline: 20 * time.Second, Clock: state.HostClock(), Log: log,
		LogSize: func(step.ID) int64 { return 0 },
	})
	if err != nil {
		t.Fatal(err)
	}
	stopping := make(chan struct{})
	var work sync.WaitGroup
	t.Cleanup(func() {
		close(stopping)
		work.Wait()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	h, err := New(Config{
		Gate: &Gate{Changed: func() {}}, Store: store, BootID: "boot", Timeout: time.Minute,
		EndStep: func(ctx context.Context, _ *step.Record) error {
			select {
			case <-die:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		},
		Found: func() {}, Released: func(step.ID) {}, Go: work.Go, Stopping: stopping, Log: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestDrainOwner: only the drain that noded has made for unkillable processes ends by itself.
func TestDrainOwner(t *testing.T) {
	administer := func(d state.Drain) func(*testing.T, *Health) {
		return func(t *testing.T, h *Health) {
			if err := h.SetDrain(d); err != nil {
				t.Fatal(err)
			}
		}
	}
	disk := administer(state.Drain{Drained: true, Reason: "disk"})
	resume := administer(state.Drain{})
	for _, tc := range []struct {
		name, reason  string
		before, after func(*testing.T, *Health)
	}{
		{"drained before", "disk", disk, nil},
		{"drained after", "disk", nil, disk},
		{"resumed", "", nil, resume},
		{"resumed, and drained again", "disk", nil, func(t *testing.T, h *Health) { resume(t, h); disk(t, h) }},
		{"another reason beside it", "Kill task failed: step 1.0: 1 left; required plugin", nil, func(_ *testing.T, h *Health) { h.Drain("required plugin") }},
		{"another step beside it", "", nil, func(t *testing.T, h *Health) {
			h.Hold(&step.Record{ID: step.ID{Job: 1, Step: 5}})
			if d := h.cfg.Gate.Drain(); d.Reason != "Kill task failed: step 1.0: 1 left; step 1.5: 0 left" {
				t.Errorf("reason %q", d.Reason)
			}
			h.AwaitEmpty(step.ID{Job: 1, Step: 5})
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			die, released := make(chan struct{}), make(chan step.ID, 2)
			h := fresh(t, die)
			h.cfg.Released = func(id step.ID) { released <- id }
			if tc.before != nil {
				tc.before(t, h)
			}
			rec := &step.Record{ID: step.ID{Job: 1}, SurvivorsTotal: 1}
			h.Hold(rec)
			h.AwaitEmpty(rec.ID)
			h.AwaitEmpty(rec.ID) // it is awaited once
			if tc.after != nil {
				tc.after(t, h)
			}
			held := len(h.Docs())
			close(die)
			for range held {
				select {
				case <-released:
				case <-time.After(20 * time.Second):
					t.Fatal("what is held is not released")
				}
			}
			if d := h.cfg.Gate.DrainNow(); d.Reason != tc.reason || d.Drained != (tc.reason != "") || h.HoldsJob(0) || len(h.Docs()) > 0 {
				t.Errorf("the drain is %+v, want %q, and %d steps are held", d, tc.reason, len(h.Docs()))
			}
		})
	}
}

// TestGate: a drained node takes no new job, and steps of jobs that run; a closed one takes
// nothing.
func TestGate(t *testing.T) {
	rung := 0
	silent := errors.New("the spool does not answer")
	g := &Gate{Changed: func() { rung++ }}
	says := func(newJob bool, words string) {
		t.Helper()
		err := g.Admits(newJob)
		if (err == nil) != (words == "") || err != nil && !strings.Contains(err.Error(), words) {
			t.Errorf("a new job: %t: %v, want %q", newJob, err, words)
		}
	}
	says(true, "")
	g.Set(state.Drain{Drained: true, Reason: "disk"})
	says(true, "node is drained: disk")
	says(false, "")
	g.Set(state.Drain{})
	g.Silence = func() error { return silent }
	says(true, "node is drained: "+silent.Error())
	if d := g.Drain(); d.Drained {
		t.Errorf("a silent spool is stored as %+v", d)
	}
	g.Silence = nil
	g.Close()
	if says(false, "noded is stopping"); api.CodeOf(g.Admits(true)) != api.Unavailable || !g.Closing() || rung != 3 {
		t.Errorf("%v; waiting requests were woken %d times", g.Admits(true), rung)
	}
}

// TestNoQuarantine: without QuarantineAfter nothing is counted.
func TestNoQuarantine(t *testing.T) {
	h := fresh(t, nil)
	for range 5 {
		h.Plugins.Count([]step.PluginCrash{{Path: "/x.so", Required: true}}, func(string) bool { return true })
	}
	if q := h.Plugins.List(); len(q) != 0 || h.cfg.Gate.Drain().Drained {
		t.Errorf("%v, %+v", q, h.cfg.Gate.Drain())
	}
}
