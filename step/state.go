package step

import "fmt"

// State is where a step stands in its life. The legal moves are one table,
// stateMoves; Move is the only way to make one.
type State string

// The states that users see (the contract of ps and show).
const (
	Pending     State = "PENDING"
	Starting    State = "STARTING"
	Running     State = "RUNNING"
	Completing  State = "COMPLETING"
	Completed   State = "COMPLETED"
	Failed      State = "FAILED"
	Cancelled   State = "CANCELLED"
	Timeout     State = "TIMEOUT"
	OutOfMemory State = "OUT_OF_MEMORY"
	NodeFail    State = "NODE_FAIL"
)

var stateMoves = map[State][]State{
	Pending:    {Starting, Failed, Cancelled},
	Starting:   {Running, Completing, Failed, Cancelled, Timeout, NodeFail},
	Running:    {Completing, Completed, Failed, Cancelled, Timeout, OutOfMemory, NodeFail},
	Completing: {Completed, Failed, Cancelled, Timeout, OutOfMemory, NodeFail},
}

// Final reports whether no move leads out of s.
func (s State) Final() bool { return len(stateMoves[s]) == 0 }

// Move returns to, or an error that names both states when the move is illegal.
func (s State) Move(to State) (State, error) {
	for _, legal := range stateMoves[s] {
		if legal == to {
			return to, nil
		}
	}
	return s, fmt.Errorf("internal error: step cannot go from %s to %s", s, to)
}

// TaskState is where one task stands. FAILED means that it was never exec'd.
type TaskState string

const (
	TaskPending  TaskState = "PENDING"
	TaskStarting TaskState = "STARTING"
	TaskRunning  TaskState = "RUNNING"
	TaskExited   TaskState = "EXITED"
	TaskFailed   TaskState = "FAILED"
)
