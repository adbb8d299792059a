package state

import (
	"time"

	"stepd/internal/linux"
	"stepd/step"
)

// Job is a running job in the store.
type Job struct {
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
	Suspended *Suspension `json:"suspended,omitempty"`
	// Holder is the client of an allocation.
	Holder *Process `json:"holder,omitempty"`
	// Deadline is when the job's time is over, nil is never; Warn is sent to its steps
	// before, nil is nothing.
	Deadline   *time.Time    `json:"deadline,omitempty"`
	DeadlineUp *Uptime       `json:"deadline_up,omitempty"`
	Warn       *step.Warning `json:"warn,omitempty"`
	// Array is the place of the job in a job array, Restarts counts its earlier runs: both are
	// the controller's word.
	Array    *step.ArrayTask `json:"array,omitempty"`
	Restarts uint32          `json:"restarts,omitempty"`
	// Stack is the digest of the plugin stack with which the job began, "" where that could not
	// be read.
	Stack string `json:"stack,omitempty"`
	// Names are published by the job's MPI programs for each other.
	Names []Name `json:"names,omitempty"`
}

// firstStep is the number of the step that the job was made for.
func (j *Job) firstStep() uint32 {
	if j.Origin == step.OriginBatch {
		return step.BatchStep
	}
	return j.First
}

// Leads reports whether the job was made for the step, and ends with it.
func (j *Job) Leads(id step.ID) bool { return j.Implicit && id.Step == j.firstStep() }

// HasClient reports whether the client of an allocation holds the job, beside its steps.
func (j *Job) HasClient() bool { return j.Origin == step.OriginAlloc }

// Suspension says who has suspended a job, and when.
type Suspension struct {
	Since time.Time `json:"since"`
	By    uint32    `json:"by"`
}

// Process names the client process of an allocation for ever, as a Record does a
// stepd: pids come again.
type Process struct {
	PID    int    `json:"pid"`
	Start  uint64 `json:"start"` // clock ticks since boot
	BootID string `json:"boot_id"`
}

// Name is one name of a job's (MPI_Publish_name). Both may be any bytes.
type Name struct {
	Name []byte `json:"name"`
	Port []byte `json:"port"`
}

// Drain is the node's drain state; the zero value is not drained.
type Drain struct {
	Drained bool   `json:"drained"`
	Reason  string `json:"reason"`
	// Owner is who ends the drain: ownerHeld, or "" for an administrator.
	Owner string `json:"owner,omitempty"`
}

// OwnerHeld: noded has drained the node for processes that do not die, and ends
// the drain with them, unless an administrator has changed it meanwhile.
const OwnerHeld = "unkillable"

// Crash is what the store keeps of a plugin that crashes.
type Crash struct {
	Hook     string `json:"hook"` // the last one
	Times    int    `json:"times"`
	Required bool   `json:"required"`
	File     File   `json:"file"`
}

// File tells one file from another of the same path. The zero value is a
// missing file.
type File struct {
	Dev   uint64 `json:"dev"`
	Ino   uint64 `json:"ino"`
	Mtime int64  `json:"mtime"` // ns
}

// Held is a step, or the prolog and epilog of a job, of which processes
// are left that SIGKILL does not end. noded waits for their end, over restarts.
type Held struct {
	// Rec is what Tracker.EndStep needs to know of the step, and who is left.
	Rec   step.Record `json:"record"`
	Since time.Time   `json:"since"`
	// Waived: an administrator has resumed the node meanwhile.
	Waived bool `json:"waived,omitempty"`
	// Programmed: UnkillableStepProgram was run for it.
	Programmed bool `json:"programmed,omitempty"`
}

// Uptime is a moment by the clock that is never set: how long the host has run since its boot.
type Uptime struct {
	BootID string        `json:"boot_id"`
	Up     time.Duration `json:"up_ns"`
}

// batchRecord is what a power failure leaves of a batch job.
type batchRecord struct {
	// Job is nil when nothing is left to be done for the job, its epilog included.
	Job     *Job        `json:"job,omitempty"`
	Control [][]byte    `json:"control,omitempty"`
	Step    step.Record `json:"step"`
}

// Limit gives the job its end, from now on.
func (j *Job) Limit(d time.Duration, c *Clock, boot string) {
	j.Deadline, j.DeadlineUp = new(c.Now().Add(d)), &Uptime{BootID: boot, Up: c.Up() + d}
}

// GoOn makes a stored Deadline one to be waited for: an older noded's is by the host's
// clock.
func (j *Job) GoOn(c *Clock, boot string) {
	if u := j.DeadlineUp; j.Deadline != nil && u != nil && linux.SameBoot(u.BootID, boot) {
		j.Deadline = new(c.Now().Add(u.Up - c.Up()))
	}
}

// The host's clock may be set while steps run. What noded has to wait for it counts by the
// monotonic clock, and what the next noded is to go on with is stored by that clock too:
// within a boot nothing depends on the host's. After a boot no job is left to be limited.

// Clock is the source of times.
type Clock struct {
	// Now is the host's clock, and up how long the host has run.
	Now func() time.Time
	Up  func() time.Duration
}

// HostClock is the clock of this host.
func HostClock() *Clock { return &Clock{Now: time.Now, Up: linux.Uptime} }
