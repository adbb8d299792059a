package step

import "fmt"

// EndCause is why a step of several nodes ends on all of them.
type EndCause string

const (
	EndCancel  EndCause = "cancel"   // somebody has cancelled it there, or stepd was told to end
	EndBadExit EndCause = "bad_exit" // a task has failed, with --kill-on-bad-exit
	EndAbort   EndCause = "abort"    // a rank has asked for it (MPI_Abort), or has died within MPI
	EndMemory  EndCause = "memory"   // it uses too much memory there, and ends as a whole for it
	EndFailure EndCause = "failure"  // it could not be launched there, or has lost its plugins' host
	EndTime    EndCause = "time"     // its time limit has come
	EndLost    EndCause = "lost"     // the node itself is gone
)

// NodeEnd is what a node tells the others when the step is to end on all of them
// because of what happened on it.
type NodeEnd struct {
	// Node is the node that it happened on, by its node id, and Name its NodeName.
	Node int      `json:"node"`
	Name string   `json:"name"`
	Why  EndCause `json:"why"`
	// Rank is the task that did it, nil where none did.
	Rank *int `json:"rank,omitempty"`
	// Code is the step's exit code, for an EndAbort.
	Code int `json:"code,omitempty"`
	// Reason is one line, for an administrator.
	Reason string `json:"reason"`
}

// String is the reason in the record of a node that was told: it names the node.
func (e NodeEnd) String() string {
	if e.Why == EndLost {
		return fmt.Sprintf("node %q is lost: %s", e.Name, e.Reason)
	}
	return fmt.Sprintf("node %q has ended the step: %s", e.Name, e.Reason)
}
