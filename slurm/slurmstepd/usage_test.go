package slurmstepd

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"stepd/slurm/wire"
	"stepd/step"
)

func TestUsage(t *testing.T) {
	site := []wire.TRES{{ID: wire.TRESCPU}, {ID: wire.TRESMemory}, {ID: wire.TRESEnergy}, {ID: wire.TRESDisk}}
	rec := &step.Record{
		Usage: &step.StepUsage{Gather: "linux", Used: step.Used{UserSeconds: new(1.5), SystemSeconds: new(0.25)}},
		Tasks: []step.Task{
			{Rank: 4, Usage: &step.Used{CPUSeconds: new(0.5), MaxRSSBytes: new(int64(300)), WrittenBytes: new(int64(7))}},
			{Rank: 5, Usage: &step.Used{CPUSeconds: new(1.25), MaxRSSBytes: new(int64(100))}},
			{Rank: 6}, // nothing is known of it
			{Rank: 7, Usage: &step.Used{MaxRSSBytes: new(int64(900))}},
		},
	}
	none := wire.NewUsage(site).TRES[2].In
	zero := wire.Figures{MaxNode: 2, MaxTask: wire.Infinite64, MinNode: 2, MinTask: wire.Infinite64}
	want := &wire.Usage{User: 1500 * time.Millisecond, System: 250 * time.Millisecond, TRES: []wire.TRESUsage{
		{TRES: wire.TRES{ID: wire.TRESCPU}, In: wire.Figures{Max: 1250, MaxNode: 2, MaxTask: 5, Min: 500, MinNode: 2, MinTask: 4, Total: 1750}, Out: none},
		{TRES: wire.TRES{ID: wire.TRESMemory}, In: wire.Figures{Max: 900, MaxNode: 2, MaxTask: 7, Min: 100, MinNode: 2, MinTask: 5, Total: 1300}, Out: none},
		{TRES: wire.TRES{ID: wire.TRESEnergy}, In: zero, Out: zero},
		{TRES: wire.TRES{ID: wire.TRESDisk}, In: none, Out: wire.Figures{Max: 7, MaxNode: 2, MaxTask: 4, Min: 7, MinNode: 2, MinTask: 4, Total: 7}},
	}}
	if d := cmp.Diff(want, usage(rec, site, 2)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	rec.Usage.Gather = "none"
	if u := usage(rec, site, 2); u != nil {
		t.Errorf("a site that counts nothing: %+v", u)
	}
	if u := usage(new(step.Record), site, 2); u != nil {
		t.Errorf("a step that has not run: %+v", u)
	}
}
