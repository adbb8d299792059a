package client

import (
	"cmp"
	"testing"
	"time"

	"stepd/eventlog"
	"stepd/step"
)

// TestLaunchWords: a hook is named before the stage that it is in, and a launch that is
// over is not reported.
func TestLaunchWords(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	prolog := []eventlog.Event{{Time: now.Add(-3500 * time.Millisecond), Event: eventlog.EventStageStart, Phase: "prolog"}}
	begun := now.Add(-4 * time.Second)
	prologue := &step.Doing{Stage: "task_prolog"}
	hook := &step.Doing{Plugin: "pyxis.so", Hook: "slurm_spank_task_init", HookTime: 12300 * time.Millisecond}
	for name, c := range map[string]struct {
		rec    step.Record
		events []eventlog.Event
		want   string
	}{
		"stage":   {step.Record{State: step.Starting}, prolog, "step 12.0: the job's prolog runs for 3s"},
		"host":    {step.Record{State: step.Starting, Host: hook}, prolog, `step 12.0: plugin "pyxis.so": slurm_spank_task_init for 12s`},
		"task":    {step.Record{State: step.Starting, Tasks: []step.Task{{}, {Rank: 1, Doing: hook}}}, nil, `step 12.0: plugin "pyxis.so": slurm_spank_task_init for 12s, first of task 1`},
		"nothing": {step.Record{State: step.Pending}, nil, "step 12.0: pending"},
		"it runs, and a task waits for its prolog": {step.Record{State: step.Running, Tasks: []step.Task{{State: step.TaskRunning}, {Rank: 1, State: step.TaskStarting, Doing: prologue}}}, nil, ""},
		"its tasks wait for their prologs":         {step.Record{State: step.Running, Started: &begun, Tasks: []step.Task{{State: step.TaskStarting, Doing: prologue}, {Rank: 1, State: step.TaskStarting, Doing: prologue}}}, nil, "step 12.0: TaskProlog of tasks 0-1 runs for 4s"},
		"its task is on its way":                   {step.Record{State: step.Running, Started: &begun, Tasks: []step.Task{{State: step.TaskStarting, Doing: &step.Doing{Stage: "limits"}}}}, nil, ""},
		"it runs":                                  {step.Record{State: step.Running, Host: hook}, prolog, ""},
		"it is over":                               {step.Record{State: step.Failed}, prolog, ""},
	} {
		c.rec.ID = step.ID{Job: 12}
		if got := cmp.Or(launchWords(&c.rec, c.events, now), prologWords(&c.rec, now)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
