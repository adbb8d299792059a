package spawn

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"stepd/internal/quickjson"
	"stepd/slurm/spec"
	"stepd/step"
)

// heard runs a Reporter through records of a step, and returns what the spawning step is told,
// and whether the reporter has given it up.
func heard(t *testing.T, fail error, running []step.Record, end step.Record) (got []Report, gone string) {
	t.Helper()
	r := &Reporter{
		Origin: &spec.Origin{Node: "n1", Step: parentID, Spawn: 4}, ID: childID, Node: "n2", Ranks: 2,
		Log: func(string) {}, Gone: func(reason string) { gone = reason },
		Forward: func(_ context.Context, node string, to step.ID, record []byte) error {
			var m Report
			if err := quickjson.Unmarshal(record[2:], &m); err != nil || node != "n1" || to != parentID || binary.BigEndian.Uint16(record) != commandReport {
				t.Errorf("told %s of %s: %q, %v", to, node, record, err)
			}
			got = append(got, m)
			return fail
		},
	}
	r.Start()
	for i := range running {
		r.Look(&running[i])
	}
	r.Ended(&end)
	return got, gone
}

func TestReporter(t *testing.T) {
	tasks := func(states ...step.TaskState) (list []step.Task) {
		for i, s := range states {
			task := step.Task{Rank: 4 + i, State: s}
			if s == step.TaskFailed {
				task.Stage, task.Errno = "exec", int(unix.ENOENT)
			}
			if s == step.TaskExited {
				task.Status = new(step.ExitedWith(0))
			}
			list = append(list, task)
		}
		return list
	}
	run := Report{Spawn: 4, Step: childID, Node: "n2", Ranks: 2}
	with := func(change func(m *Report)) Report { m := run; change(&m); return m }
	zero := 0
	for _, c := range []struct {
		name    string
		running []step.Record
		end     step.Record
		want    []Report
	}{
		{"well", []step.Record{
			{Tasks: tasks(step.TaskStarting, step.TaskRunning)}, {Tasks: tasks(step.TaskRunning, step.TaskRunning)}, {Tasks: tasks(step.TaskRunning, step.TaskExited)},
		}, step.Record{State: step.Completed, ExitCode: &zero, Tasks: tasks(step.TaskExited, step.TaskExited)},
			[]Report{run, with(func(m *Report) { m.Ended, m.Reason = true, "COMPLETED: " })}},
		{"no such program", []step.Record{{Tasks: tasks(step.TaskFailed, step.TaskRunning)}},
			step.Record{State: step.Failed, ExitCode: new(2), Tasks: tasks(step.TaskFailed, step.TaskExited)}, []Report{
				with(func(m *Report) { m.Failed = []Failure{{4, "stage exec: no such file or directory"}} }),
				with(func(m *Report) { m.Ended, m.Code, m.Reason = true, 2, "FAILED: " }),
			}},
		{"never begun", []step.Record{{Tasks: tasks(step.TaskPending, step.TaskPending)}},
			step.Record{State: step.Failed, Reason: "a plugin", Tasks: tasks(step.TaskPending, step.TaskPending)}, []Report{
				with(func(m *Report) { m.Ended, m.Bad, m.Code, m.Reason = true, true, 1, "FAILED: a plugin" }),
			}},
		{"cancelled", []step.Record{{Tasks: tasks(step.TaskRunning, step.TaskRunning)}},
			step.Record{State: step.Cancelled, Reason: "by root", ExitCode: new(143), Tasks: tasks(step.TaskExited, step.TaskExited)}, []Report{
				run, with(func(m *Report) { m.Ended, m.Bad, m.Code, m.Reason = true, true, 143, "CANCELLED: by root" }),
			}},
	} {
		got, gone := heard(t, nil, c.running, c.end)
		if d := cmp.Diff(c.want, got); d != "" || gone != "" {
			t.Errorf("%s: gone %q, (-want +got):\n%s", c.name, gone, d)
		}
	}
	if _, gone := heard(t, errors.New("no such socket"), []step.Record{{Tasks: tasks(step.TaskRunning)}}, step.Record{State: step.Completed}); gone != "the step that has spawned it, 7.0, is gone" {
		t.Errorf("gone %q", gone)
	}
}
