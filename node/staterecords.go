package node

import (
	"time"

	"stepd/internal/linux"
	"stepd/step"
)

// jobRecord is a running job in the store.
type jobRecord struct {
	ID   uint32 `json:"id"`
	UID  uint32 `json:"uid"`
	User string `json:"user"`
	CPUs string `json:"cpus"`
	// MemoryMB is the job's memory, 0 where none was given; Gres what it has of the
	// node's generic resources.
	MemoryMB uint64           `json:"memory_mb,omitempty"`
	Gres     []step.GresAlloc `json:"gres,omitempty"`
	// First is the number of the step that the job was made for, NextStep the next one's.
	First    uint32 `json:"first_step,omitempty"`
	NextStep uint32 `json:"next_step"`
	// Implicit jobs were made for their first step, and end with it.
	Implicit bool `json:"implicit"`
	// Origin is what made the job; "" in the records of an older noded is a run.
	Origin step.JobOrigin `json:"origin,omitempty"`
	Name   string         `json:"name,omitempty"`
	NTasks int            `json:"ntasks,omitempty"`
	GID    uint32         `json:"gid,omitempty"`
	// WorkDir, and of a batch job the patterns of its streams, are what prolog
	// and epilog are told.
	WorkDir string `json:"work_dir,omitempty"`
	Stdin   string `json:"stdin,omitempty"`
	Stdout  string `json:"stdout,omitempty"`
	// Prologued: the prolog of an allocation has run.
	Prologued bool `json:"prologued,omitempty"`
	// Suspended: the job's steps stand still, and it takes no further ones.
	Suspended *suspendRecord `json:"suspended,omitempty"`
	// Holder is the client of an allocation.
	Holder *holder `json:"holder,omitempty"`
	// Deadline is when the job's time is over, nil is never; Warn is sent to its steps
	// before, nil is nothing.
	Deadline   *time.Time    `json:"deadline,omitempty"`
	DeadlineUp *deadlineUp   `json:"deadline_up,omitempty"`
	Warn       *step.Warning `json:"warn,omitempty"`
	// Array is the place of the job in a job array, Restarts counts its earlier runs: both are
	// the controller's word.
	Array    *step.ArrayTask `json:"array,omitempty"`
	Restarts uint32          `json:"restarts,omitempty"`
	// Names are published by the job's MPI programs for each other.
	Names []published `json:"names,omitempty"`
}

// firstStep is the number of the step that the job was made for.
func (j *jobRecord) firstStep() uint32 {
	if j.Origin == step.OriginBatch {
		return step.BatchStep
	}
	return j.First
}

// leads reports whether the job was made for the step, and ends with it.
func (j *jobRecord) leads(id step.ID) bool { return j.Implicit && id.Step == j.firstStep() }

// held reports whether the client of an allocation holds the job, beside its steps.
func (j *jobRecord) held() bool { return j.Origin == step.OriginAlloc }

// suspendRecord says who has suspended a job, and when.
type suspendRecord struct {
	Since time.Time `json:"since"`
	By    uint32    `json:"by"`
}

// holder names the client process of an allocation for ever, as a Record does a
// stepd: pids come again.
type holder struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // clock ticks since boot
	BootID string `json:"boot_id"`
}

// published is one name of a job's (MPI_Publish_name). Both may be any bytes.
type published struct {
	Name []byte `json:"name"`
	Port []byte `json:"port"`
}

// drainRecord is the node's drain state; the zero value is not drained.
type drainRecord struct {
	Drained bool   `json:"drained"`
	Reason  string `json:"reason"`
	// Owner is who ends the drain: ownerHeld, or "" for an administrator.
	Owner string `json:"owner,omitempty"`
}

// ownerHeld: noded has drained the node for processes that do not die, and ends
// the drain with them, unless an administrator has changed it meanwhile.
const ownerHeld = "unkillable"

// crashRecord is what the store keeps of a plugin that crashes.
type crashRecord struct {
	Hook     string   `json:"hook"` // the last one
	Times    int      `json:"times"`
	Required bool     `json:"required"`
	File     fileName `json:"file"`
}

// fileName tells one file from another of the same path. The zero value is a
// missing file.
type fileName struct {
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Mtime int64  `json:"mtime"` // ns
}

// heldRecord is a step, or the prolog and epilog of a job, of which processes
// are left that SIGKILL does not end. noded waits for their end, over restarts.
type heldRecord struct {
	// Rec is what Tracker.EndStep needs to know of the step, and who is left.
	Rec   step.Record `json:"record"`
	Since time.Time   `json:"since"`
	// Waived: an administrator has resumed the node meanwhile.
	Waived bool `json:"waived,omitempty"`
	// Programmed: UnkillableStepProgram was run for it.
	Programmed bool `json:"programmed,omitempty"`
}

// deadlineUp is a job's Deadline by the clock that is never set.
type deadlineUp struct {
	BootID string        `json:"boot_id"`
	Up     time.Duration `json:"up_ns"`
}

// batchRecord is what a power failure leaves of a batch job.
type batchRecord struct {
	// Job is nil when nothing is left to be done for the job, its epilog included.
	Job     *jobRecord  `json:"job,omitempty"`
	Control [][]byte    `json:"control,omitempty"`
	Step    step.Record `json:"step"`
}

// endedAt is when a step ended: how long the host had run by then.
type endedAt struct {
	BootID string        `json:"boot_id"`
	Up     time.Duration `json:"up_ns"`
}

// limit gives the job its end, from now on.
func (j *jobRecord) limit(d time.Duration, c *clock, boot string) {
	end := c.now().Add(d)
	j.Deadline, j.DeadlineUp = &end, &deadlineUp{BootID: boot, Up: c.up() + d}
}

// goOn makes a stored Deadline one to be waited for: an older noded's is by the host's
// clock.
func (j *jobRecord) goOn(c *clock, boot string) {
	if u := j.DeadlineUp; j.Deadline != nil && u != nil && linux.SameBoot(u.BootID, boot) {
		end := c.now().Add(u.Up - c.up())
		j.Deadline = &end
	}
}
