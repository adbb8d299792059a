package eventlog

import (
	"strings"
	"testing"
	"time"

	"stepd/step"
)

// TestLoseTasks: a task that has exec'd is EXITED, and one that was never exec'd
// is FAILED, and no end is made up.
func TestLoseTasks(t *testing.T) {
	begun := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	exec := `{"time":"2026-11-28T12:00:00Z","event":"task_exec","rank":3,"pid":9}` + "\n"
	running := `{"time":"2026-11-28T12:00:00Z","event":"state","state":"RUNNING"}` + "\n"
	long := `{"event":"hook_end","text":"` + strings.Repeat("x", 200<<10) + `"}` + "\n"
	code7 := step.ExitedWith(7)
	for _, tc := range []struct {
		name    string
		was     step.TaskState
		started bool
		log     string
		after   time.Duration
		want    step.TaskState
		status  *step.ExitStatus
	}{
		{name: "it was never launched", was: step.TaskPending, want: step.TaskFailed},
		{name: "it waited at the gate", was: step.TaskStarting, want: step.TaskFailed, after: time.Hour},
		{name: "it ran, as the record says", was: step.TaskRunning, started: true, want: step.TaskExited, after: time.Hour},
		{name: "it ran, as the log says", was: step.TaskPending, log: running + exec, want: step.TaskExited, after: time.Hour},
		{name: "it ran behind a long line", was: step.TaskPending, log: long + exec, want: step.TaskExited, after: time.Hour},
		{name: "it may have begun to run", was: step.TaskStarting, started: true, want: step.TaskExited, after: time.Second},
		{name: "it may have, as the log says", was: step.TaskPending, log: running, want: step.TaskExited, after: time.Second},
		{name: "it hung before its exec", was: step.TaskStarting, started: true, want: step.TaskFailed, after: time.Minute},
		{name: "it ended", was: step.TaskPending, want: step.TaskExited, status: &code7, after: time.Hour,
			log: exec + `{"time":"2026-11-28T12:00:01Z","event":"task_exit","rank":3,"pid":9,"status":1792}` + "\n"},
		{name: "it ended without an exec", was: step.TaskPending, want: step.TaskFailed, status: &code7, after: time.Hour,
			log: `{"time":"2026-11-28T12:00:01Z","event":"task_exit","rank":3,"pid":9,"status":1792}` + "\n"},
		{name: "another task ran", was: step.TaskPending, want: step.TaskFailed, after: time.Hour,
			log: `{"time":"2026-11-28T12:00:00Z","event":"task_exec","rank":4,"pid":9}` + "\n"},
		{name: "the log is cut", was: step.TaskPending, want: step.TaskFailed, after: time.Hour,
			log: strings.TrimSuffix(exec, "\n")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := &step.Record{Tasks: []step.Task{{Rank: 3, State: tc.was}}}
			if tc.started {
				rec.Started = &begun
			}
			LoseTasks(rec, strings.NewReader(tc.log), begun.Add(tc.after))
			got := rec.Tasks[0]
			if got.State != tc.want {
				t.Errorf("the task is %s, want %s", got.State, tc.want)
			}
			if (got.Status == nil) != (tc.status == nil) || got.Status != nil && *got.Status != *tc.status {
				t.Errorf("its status is %v, want %v", got.Status, tc.status)
			}
		})
	}
}
