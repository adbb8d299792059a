package main

import (
	"testing"
	"time"

	"stepd/step"
)

// TestLaunchWords: a hook is named before the stage that it is in, and a launch that is
// over is not told of.
func TestLaunchWords(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	prolog := []step.Event{{Time: now.Add(-3500 * time.Millisecond), Event: step.EventStageStart, Phase: "prolog"}}
	hook := &step.Doing{Plugin: "pyxis.so", Hook: "slurm_spank_task_init", HookTime: 12300 * time.Millisecond}
	for name, c := range map[string]struct {
		rec    step.Record
		events []step.Event
		want   string
	}{
		"stage":      {step.Record{State: step.Starting}, prolog, "step 12.0: the job's prolog runs for 3s"},
		"host":       {step.Record{State: step.Starting, Host: hook}, prolog, `step 12.0: plugin "pyxis.so": slurm_spank_task_init for 12s`},
		"task":       {step.Record{State: step.Starting, Tasks: []step.Task{{}, {Rank: 1, Doing: hook}}}, nil, `step 12.0: plugin "pyxis.so": slurm_spank_task_init for 12s, first of task 1`},
		"nothing":    {step.Record{State: step.Pending}, nil, "step 12.0: pending"},
		"it runs":    {step.Record{State: step.Running, Host: hook}, prolog, ""},
		"it is over": {step.Record{State: step.Failed}, prolog, ""},
	} {
		c.rec.ID = step.ID{Job: 12}
		if got := launchWords(&c.rec, c.events, now); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
