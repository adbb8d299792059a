package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"stepd/step"
)

// Schema is the version of the API. A request of another one is refused.
const Schema = 1

// Envelope is what every request and every reply begins with.
type Envelope struct {
	// Schema is 1. Client and noded fill it in.
	Schema int `json:"schema"`
}

// Stamp makes it one of this package's version.
func (e *Envelope) Stamp() { e.Schema = Schema }

// Version is the schema of a request, as it came.
func (e *Envelope) Version() int { return e.Schema }

// Decode reads one JSON document that is all of raw. Unknown fields are an error: what a
// client asks for must not be dropped silently by an older noded.
func Decode(raw []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, more := d.Token(); more != io.EOF {
		return errors.New("bytes after the document")
	}
	return nil
}

// Empty is a request or reply that says nothing.
type Empty struct {
	Envelope
}

// StepRef names a step, or a job with all of its steps.
type StepRef struct {
	JobID uint32 `json:"job_id"`
	// StepID is the step's number in its job; nil is the job.
	StepID *uint32 `json:"step_id,omitempty"`
}

// Ref is the reference itself: requests have it from the StepRef that they embed.
func (r StepRef) Ref() StepRef { return r }

// Ref names one step.
func Ref(id step.ID) StepRef { return StepRef{JobID: id.Job, StepID: &id.Step} }

// RefRequest asks about a step, or about a job: show, stat, wait, suspend, unsuspend and
// output.
type RefRequest struct {
	Envelope
	StepRef
}

// RunRequest asks for a step (run, reserve, dryrun) or for a job without one (alloc, for
// which the request's command and streams mean nothing).
type RunRequest struct {
	Envelope
	Request *step.Request `json:"request"`

	// Bytes is the size of the document that the request was read from. noded fills it in.
	Bytes int `json:"-"`
}

// RunReply is the answer to run, reserve and launch: the step has a number.
type RunReply struct {
	Envelope
	JobID  uint32 `json:"job_id"`
	StepID uint32 `json:"step_id"`
	// SocketDir and SocketName are where the step's stepd listens (package stepapi).
	SocketDir  string `json:"socket_dir"`
	SocketName string `json:"socket_name"`
	// Node is the node's name, for messages.
	Node string `json:"node"`
	// Spec is the step as it was decided, without its command, environment and script.
	Spec *step.Spec `json:"spec"`
}

// DryRunReply is what run would do.
type DryRunReply struct {
	Envelope
	Plan *DryRun `json:"plan"`
}

// LaunchRequest starts a reserved step.
type LaunchRequest struct {
	Envelope
	StepRef
	// Change is what has changed since the reservation.
	Change *step.LaunchChange `json:"change"`
}

// AllocReply is a job without a step.
type AllocReply struct {
	Envelope
	JobID uint32 `json:"job_id"`
	Node  string `json:"node"`
	// CPUs is how many the job has, CPUList which: "0-3".
	CPUs      int    `json:"cpus"`
	CPUList   string `json:"cpu_list"`
	Partition string `json:"partition"`
}

// ReleaseRequest ends a job of alloc.
type ReleaseRequest struct {
	Envelope
	JobID uint32 `json:"job_id"`
}

// ListRequest asks for the steps that have not ended, with All for the ended ones as well.
type ListRequest struct {
	Envelope
	All bool `json:"all,omitempty"`
}

// SignalRequest sends a signal to a step, or to all steps of a job.
type SignalRequest struct {
	Envelope
	StepRef
	Signal int `json:"signal"`
	// Scope is step.ScopeLeader, step.ScopeTasks ("" is the same) or step.ScopeCgroup.
	Scope string `json:"scope,omitempty"`
}

// CancelRequest ends a step, or a job.
type CancelRequest struct {
	Envelope
	StepRef
	Reason string `json:"reason,omitempty"`
}

// AdoptRequest puts a process into the extern step of a job. Root only.
type AdoptRequest struct {
	Envelope
	// PID is the process, by noded's count.
	PID int `json:"pid"`
	// JobID is the job; 0 is the user's newest.
	JobID uint32 `json:"job_id,omitempty"`
	// UID is the user whose job it is; nil is the process's own user. A process of
	// root's needs UID or JobID.
	UID *uint32 `json:"uid,omitempty"`
}

// AdoptReply says where the process is now.
type AdoptReply struct {
	Envelope
	JobID  uint32 `json:"job_id"`
	StepID uint32 `json:"step_id"`
	Cgroup string `json:"cgroup"`
	// Namespaces are paths of the job's, for setns(2) by the process itself, by the
	// names of /proc/PID/ns. A job without a container has none.
	Namespaces map[string]string `json:"namespaces"`
}

// EventsRequest asks for a step's event log.
type EventsRequest struct {
	Envelope
	StepRef
	// Follow goes on until the step ends.
	Follow bool `json:"follow,omitempty"`
}

// NodeReply is the node's document, as `stepctl node status --json` prints it
// (docs/json.md).
type NodeReply struct {
	Envelope
	Node json.RawMessage `json:"node"`
}

// DrainRequest drains the node. Root only.
type DrainRequest struct {
	Envelope
	Reason string `json:"reason"`
}

// ConfigReply is what a client takes from the node's configuration.
type ConfigReply struct {
	Envelope
	Node       string   `json:"node"`
	Cluster    string   `json:"cluster"`
	CPUs       int      `json:"cpus"`
	MaxTasks   int      `json:"max_tasks"`
	MPIDefault string   `json:"mpi_default"`
	MPITypes   []string `json:"mpi_types"`
	SlurmConf  string   `json:"slurm_conf"`
	// Plugstack is the file of the plugin stack, "" without one, and PluginDirs are where
	// its plugins are looked for.
	Plugstack  string   `json:"plugstack"`
	PluginDirs []string `json:"plugin_dirs"`
	// AllowReleases is SpankAllowReleases, HookTimeoutS HookTimeout (0 is none),
	// SpankStrict and RequireSafe are SpankStrict and RequireSafePlugins.
	AllowReleases []string `json:"allow_releases"`
	HookTimeoutS  int      `json:"hook_timeout_s"`
	SpankStrict   bool     `json:"spank_strict"`
	RequireSafe   bool     `json:"require_safe"`
	// PlugstackDigest is what noded has read of the plugin stack just now, or
	// PlugstackError why it cannot. A client that reads the same has read no half-written
	// file.
	PlugstackDigest string `json:"plugstack_digest"`
	PlugstackError  string `json:"plugstack_error"`
	// InteractiveStep is what alloc without a command runs (InteractiveStepOptions), ""
	// where LaunchParameters has no use_interactive_step.
	InteractiveStep string `json:"interactive_step"`
}

// Line is one line of a reply of several documents: either a document or the last line,
// which has End or Error.
type Line struct {
	Step  *step.Record    `json:"step,omitempty"`  // list, show, stat, wait
	Event json.RawMessage `json:"event,omitempty"` // events

	Schema int    `json:"schema,omitempty"`
	End    bool   `json:"end,omitempty"` // the reply is complete
	Error  *Error `json:"error,omitempty"`
}

// Refusal is the document of a request that was refused.
type Refusal struct {
	Envelope
	Error *Error `json:"error"`
}
