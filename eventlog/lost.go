package eventlog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"stepd/step"
)

// tellMax is how long after a task's exec its stepd has told noded, and written the log.
const tellMax = 5 * time.Second

// LoseTasks gives the tasks of a step whose stepd has died their ends. log is the step's event
// log, nil where there is none: it has ends, and execs, that the record has not. Of a task that
// ran, and was killed with stepd, the end is not known, and is not made up: its state is EXITED,
// and it has neither an exit code nor a signal. So is the end of one that may have exec'd in the
// moment before stepd died, or stood still: heard is until when it is known to have worked.
func LoseTasks(rec *step.Record, log io.Reader, heard time.Time) {
	tasks := make(map[int]*step.Task, len(rec.Tasks))
	for i := range rec.Tasks {
		tasks[rec.Tasks[i].Rank] = &rec.Tasks[i]
	}
	begun := rec.Started
	if log != nil {
		eachLine(log, func(line []byte) {
			var e Event
			if json.Unmarshal(line, &e) != nil {
				return // stepd's death may have cut it
			}
			switch t, known := tasks[rankOf(&e)]; {
			case e.Event == EventState && e.State == step.Running && begun == nil:
				begun = &e.Time
			case e.Event == EventTaskExec && known && waits(t):
				t.State = step.TaskRunning
			case e.Event == EventTaskExit && known && t.Status == nil && e.Status != nil:
				ran := t.State == step.TaskRunning
				if t.End(*e.Status); !ran {
					t.State = step.TaskFailed
				}
			}
		})
	}
	for i := range rec.Tasks {
		switch t := &rec.Tasks[i]; {
		case t.State == step.TaskRunning:
			t.State = step.TaskExited
		case !waits(t):
		case begun != nil && heard.Sub(*begun) < tellMax:
			t.State = step.TaskExited
		default:
			t.State = step.TaskFailed
		}
	}
}

// waits reports whether nothing is known of a task's exec.
func waits(t *step.Task) bool { return t.State == step.TaskPending || t.State == step.TaskStarting }

func rankOf(e *Event) int {
	if e.Rank == nil {
		return -1
	}
	return *e.Rank
}

// eachLine calls f with each whole line that is short enough to be about one task.
func eachLine(log io.Reader, f func(line []byte)) {
	r := bufio.NewReaderSize(log, 64<<10)
	for long := false; ; {
		line, err := r.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			long = true
		case err != nil:
			return
		case long:
			long = false
		default:
			f(bytes.TrimSuffix(line, []byte("\n")))
		}
	}
}
