package slurmstepd

import (
	"syscall"
	"testing"

	"stepd/step"
)

func TestVerdict(t *testing.T) {
	kill, term, one, two := step.SignaledBy(syscall.SIGKILL), step.SignaledBy(syscall.SIGTERM), step.ExitedWith(1), step.ExitedWith(2)
	type tasks []step.ExitStatus
	for _, tt := range []struct {
		name   string
		tasks  tasks
		ended  int // of the first tasks, before the command
		killed bool
		with   func(*step.Record)
		want   step.ExitStatus
	}{
		{name: "all well", tasks: tasks{0, 0}},
		{name: "the highest code", tasks: tasks{one, two, 0}, want: two},
		{name: "the first signal", tasks: tasks{two, kill, term}, want: kill},
		{name: "killed by a command", tasks: tasks{one, kill, kill}, ended: 1, killed: true, want: one},
		{name: "all killed by a command", tasks: tasks{term, kill}, killed: true, want: term},
		{name: "no task", with: func(r *step.Record) { r.ExitCode = new(1) }, want: one},
		{name: "no task, a signal", with: func(r *step.Record) { r.Signal = new(9) }, want: kill},
		{name: "an MPI abort", tasks: tasks{kill, kill}, with: func(r *step.Record) { r.Aborted, r.ExitCode = true, new(2) }, want: two},
		{name: "out of memory", tasks: tasks{kill}, with: func(r *step.Record) { r.State = step.OutOfMemory }, want: oomStatus},
		{name: "one process out of memory", tasks: tasks{0}, with: func(r *step.Record) { r.OOM = []step.OOMKill{{}} }, want: oomStatus},
		{name: "extern", tasks: tasks{kill}, with: func(r *step.Record) { r.ID.Step = step.ExternStep }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rec := &step.Record{}
			for i := range tt.tasks {
				task := step.Task{Rank: i}
				if i < tt.ended {
					task.End(tt.tasks[i])
				}
				rec.Tasks = append(rec.Tasks, task)
			}
			var v verdict
			if tt.killed {
				v.kill(rec)
			}
			for i := range tt.tasks {
				rec.Tasks[i].End(tt.tasks[i])
			}
			if tt.with != nil {
				tt.with(rec)
			}
			if got := v.status(rec); got != tt.want {
				t.Errorf("got %#x, want %#x", got, tt.want)
			}
		})
	}
}
