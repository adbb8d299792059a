package spawn

import (
	"encoding/binary"
	"fmt"

	"stepd/internal/quickjson"
	"stepd/step"
)

// The commands of records between step daemons, beside srun's on the same socket, which counts
// its own from 0.
const (
	commandReport = 0x7301 // a Report, as JSON
	commandCancel = 0x7302 // a cancel, as JSON
)

// recordMax bounds a record, in bytes.
const recordMax = 1 << 20

// failedMax bounds the failed ranks that a Report names.
const failedMax = 1000

// Report is what the step daemon of one node of a spawned step tells the spawning one's.
type Report struct {
	// Spawn is the number that the spawning daemon has given.
	Spawn uint32 `json:"spawn"`
	// Step, Node and Ranks are the new step's, its node's name, and how many ranks that has.
	Step  step.ID `json:"step"`
	Node  string  `json:"node"`
	Ranks int     `json:"ranks"`
	// Ended says that the node's tasks have ended; else they run, but for Failed.
	Ended bool `json:"ended"`
	// Failed are ranks that could not be started, each with the cause.
	Failed []Failure `json:"failed,omitempty"`
	// Bad says that the end is not the tasks' own: an abort, a cancel, a lost task. Code and
	// Reason are the step's then.
	Bad    bool   `json:"bad,omitempty"`
	Code   int    `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Failure is a rank that could not be started.
type Failure struct {
	Rank  int    `json:"rank"`
	Cause string `json:"cause"`
}

// cancel ends a spawned step.
type cancel struct {
	Reason string `json:"reason"`
}

// encode is a record as slurmd passes it on.
func encode(command uint16, doc any) ([]byte, error) {
	b, err := quickjson.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("internal error: cannot encode a report of a spawned step: %w", err)
	}
	return append(binary.BigEndian.AppendUint16(nil, command), b...), nil
}

// Address is the socket's path of a step, of which slurmd replaces %n and %h in spool. It is the
// path that srun sends to: mpi/pmi2 of Slurm's own step daemon has it.
func Address(spool string, id step.ID) string {
	return fmt.Sprintf("%s/sock.pmi2.%d.%d", spool, id.Job, id.Step)
}
