package eventlog

import (
	"stepd/step"
	"time"
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
