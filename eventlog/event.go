package eventlog

import (
	"encoding/json"
	"strconv"
	"time"

	"stepd/step"
)

// Event is one line of a step's event log. Fields that do not
// belong to the event are absent.
type Event struct {
	Time   time.Time `json:"time"`
	Event  string    `json:"event"`
	JobID  *uint32   `json:"job_id,omitempty"`
	StepID *uint32   `json:"step_id,omitempty"`
	// Phase is the stage of the launch (stage_start, stage_end).
	Phase string `json:"phase,omitempty"`
	// DurUS is a duration in microseconds (stage_end, hook_end).
	DurUS  *int64           `json:"dur_us,omitempty"`
	Plugin string           `json:"plugin,omitempty"`
	Hook   string           `json:"hook,omitempty"`
	RC     *int             `json:"rc,omitempty"`
	Rank   *int             `json:"rank,omitempty"`
	PID    int              `json:"pid,omitempty"`
	Status *step.ExitStatus `json:"status,omitempty"` // raw wait status
	Signal *int             `json:"signal,omitempty"`
	State  step.State       `json:"state,omitempty"`
	Stage  string           `json:"stage,omitempty"`
	Errno  int              `json:"errno,omitempty"`
	Text   string           `json:"text,omitempty"`
	// Ranks are the ranks that have come as far in MPI as MPI says, as a list (mpi); MPI
	// is absent where they are unknown.
	Ranks string            `json:"ranks,omitempty"`
	MPI   *step.MPIProgress `json:"mpi,omitempty"`
	// Usage is the step's, at its end (usage).
	Usage *step.StepUsage `json:"usage,omitempty"`
}

// LogTime is the form of times in the daemons' logs of JSON lines.
const LogTime = "2006-01-02T15:04:05.000000Z07:00"

// The event names.
const (
	EventRequest    = "request"
	EventAccepted   = "accepted"
	EventStageStart = "stage_start"
	EventStageEnd   = "stage_end"
	EventHookStart  = "hook_start"
	EventHookEnd    = "hook_end"
	EventTaskFork   = "task_fork"
	EventTaskExec   = "task_exec"
	EventTaskExit   = "task_exit"
	EventTaskSignal = "task_signal"
	EventKill       = "kill"
	EventUnkillable = "unkillable" // Text names the processes that SIGKILL does not end
	EventSuspend    = "suspend"
	EventResume     = "resume"
	EventOOM        = "oom"
	EventLimit      = "limit" // Text names a resource limit that is lower than it was passed on
	EventState      = "state"
	EventMPI        = "mpi"       // how far ranks had come, of a step that did not end well
	EventHeldOpen   = "held_open" // Text names the process that has kept a stream open after the step's end
	EventUsage      = "usage"
	EventEnd        = "end"
)

// AppendTo appends the event as a line of the log, with its newline: what
// encoding/json makes of it. It encodes by hand what a launch is full of: that
// package's first look at so large a type takes longer than all events of a launch.
// An event that cannot be encoded, for a time after the year 9999, adds nothing.
func (e *Event) AppendTo(b []byte) []byte {
	if e.MPI != nil || e.Usage != nil || e.Time.Year() > 9999 || e.Time.Year() < 0 {
		e := *e // so that no other event is moved to the heap for this
		line, err := json.Marshal(&e)
		if err != nil {
			return b
		}
		return append(append(b, line...), '\n')
	}
	b = append(b, `{"time":"`...)
	b = e.Time.AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","event":`...)
	b = appendString(b, e.Event)
	b = appendNumber(b, `,"job_id":`, e.JobID)
	b = appendNumber(b, `,"step_id":`, e.StepID)
	b = appendText(b, `,"phase":`, e.Phase)
	b = appendNumber(b, `,"dur_us":`, e.DurUS)
	b = appendText(b, `,"plugin":`, e.Plugin)
	b = appendText(b, `,"hook":`, e.Hook)
	b = appendNumber(b, `,"rc":`, e.RC)
	b = appendNumber(b, `,"rank":`, e.Rank)
	if e.PID != 0 {
		b = appendNumber(b, `,"pid":`, &e.PID)
	}
	b = appendNumber(b, `,"status":`, e.Status)
	b = appendNumber(b, `,"signal":`, e.Signal)
	b = appendText(b, `,"state":`, string(e.State))
	b = appendText(b, `,"stage":`, e.Stage)
	if e.Errno != 0 {
		b = appendNumber(b, `,"errno":`, &e.Errno)
	}
	b = appendText(b, `,"text":`, e.Text)
	b = appendText(b, `,"ranks":`, e.Ranks)
	return append(b, "}\n"...)
}

// appendNumber appends a field unless it is absent.
func appendNumber[T ~int | ~int64 | ~uint32](b []byte, key string, v *T) []byte {
	if v == nil {
		return b
	}
	return strconv.AppendInt(append(b, key...), int64(*v), 10)
}

// appendText appends a field unless it is empty.
func appendText(b []byte, key, v string) []byte {
	if v == "" {
		return b
	}
	return appendString(append(b, key...), v)
}

// appendString appends a string of JSON. What is neither ASCII nor plain is rare.
func appendString(b []byte, v string) []byte {
	for i := range len(v) {
		if c := v[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			text, err := json.Marshal(v)
			if err != nil {
				return append(b, `""`...) // a string can be encoded
			}
			return append(b, text...)
		}
	}
	return append(append(append(b, '"'), v...), '"')
}
