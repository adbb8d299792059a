package selection

import (
	"testing"
	"time"

	"stepd/step"
)

// fullNode is a node of 256 cores of 2 threads with 200 jobs, each of which ends at another time.
func fullNode(cfg Config) (Plugin, func(*Job) *time.Time) {
	nodeOf(&cfg, 256, 2)
	p := New(cfg)
	for i := range 200 {
		sh, err := p.Test(&step.Request{NTasks: 1, CPUsPerTask: 1}, RunNow)
		if err != nil {
			panic(err)
		}
		p.Begin(sh).ID = uint32(i + 1)
	}
	return p, func(j *Job) *time.Time { return new(time.Unix(int64(j.ID), 0)) }
}

// BenchmarkDecide is one decision: what a job gets, its begin, and its end.
func BenchmarkDecide(b *testing.B) {
	p, _ := fullNode(Config{Policy: Policy{Unit: UnitCore}})
	req := &step.Request{NTasks: 16, CPUsPerTask: 1, Gres: []step.GresRequest{{Name: "gpu", Count: 1}}}
	for b.Loop() {
		sh, err := p.Test(req, RunNow)
		if err != nil {
			b.Fatal(err)
		}
		p.Fini(p.Begin(sh))
	}
}

// BenchmarkWillRun is the answer to when a request would fit that needs the end of 144 jobs.
func BenchmarkWillRun(b *testing.B) {
	p, ends := fullNode(Config{Policy: Policy{Unit: UnitCore}})
	req := &step.Request{NTasks: 400, CPUsPerTask: 1}
	for b.Loop() {
		if w := p.WillRun(req, ends); len(w.Holders) != 144 {
			b.Fatalf("%d holders", len(w.Holders))
		}
	}
}

// TestDecisionTime: the fastest of fifty decisions takes less than a millisecond.
func TestDecisionTime(t *testing.T) {
	p, _ := fullNode(Config{Policy: Policy{Unit: UnitCore}})
	req := &step.Request{NTasks: 16, CPUsPerTask: 1}
	best := time.Hour
	for range 50 {
		began := time.Now()
		if sh, err := p.Test(req, RunNow); err != nil {
			t.Fatal(err)
		} else {
			p.Fini(p.Begin(sh))
		}
		best = min(best, time.Since(began))
	}
	if best > time.Millisecond {
		t.Errorf("a decision takes %v", best)
	}
}
