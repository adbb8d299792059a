package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

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

// EndReply is the reply of signal and cancel.
type EndReply struct {
	Envelope
	// Notes are what the user is to know of the request, a line each: which stepd does not
	// answer, and when it is killed with its step.
	Notes []string `json:"notes,omitempty"`
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

// RunRequest asks for a step (run, reserve, dryrun, willrun) or for a job without one (alloc, for
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
	// ID is the step as users name it: "12.batch".
	ID string `json:"id"`
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

// When is the answer to willrun.
type When string

// The answers.
const (
	WhenNow   When = "now"
	WhenLater When = "later" // when others have ended
	WhenNever When = "never" // not on the empty node either, or not in a job of this size
)

// WillRunReply is when run, alloc or batch would start the request.
type WillRunReply struct {
	Envelope
	When When `json:"when"`
	// At is the latest time of a later start, null where it is not known: what holds the missing
	// resources has no time limit, or is suspended; or other requests come first.
	At *time.Time `json:"at"`
	// Why is why not now.
	Why string `json:"why"`
	// Holders are the jobs whose ends make room, or the steps where a step of a job is asked for, in
	// the order of these ends.
	Holders []Holder `json:"holders"`
	// Ahead are the requests that wait before it, the next one first.
	Ahead []NodeWaiting `json:"ahead"`
	// What the request would get now; empty and null later.
	CPUs     string  `json:"cpus"`
	MemoryMB *uint64 `json:"memory_mb"`
	Gres     string  `json:"gres"`
}

// Holder is a job that has what a request needs, or a step that has it of the job.
type Holder struct {
	// JobID is 0 while the job is being started: it has no number yet.
	JobID uint32 `json:"job_id"`
	// ID is the job or step as users name it: "3", "3.0".
	ID   string `json:"id"`
	User string `json:"user"`
	CPUs string `json:"cpus"`
	Gres string `json:"gres"`
	// MemoryMB is null where the job was given no share of the memory.
	MemoryMB *uint64 `json:"memory_mb"`
	// Until is when it ends at the latest, null where that is not known.
	Until *time.Time `json:"until"`
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

// ListRequest asks for the steps that have not ended, with All for the ended ones as well. With
// NoTasks the lists of their tasks are empty.
type ListRequest struct {
	Envelope
	All     bool `json:"all,omitempty"`
	NoTasks bool `json:"no_tasks,omitempty"`
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
	// Failed makes FAILED, with exit code 1, of a step that has ended as COMPLETED with 0: a
	// plugin of its client's has failed since. A request that names no step fails then.
	Failed bool `json:"failed,omitempty"`
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
	ID     string `json:"id"`
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
	// JobStacks are the jobs that began with another plugin stack, which their steps use.
	JobStacks []JobStack `json:"job_stacks"`
	// InteractiveStep is what alloc without a command runs (InteractiveStepOptions), ""
	// where LaunchParameters has no use_interactive_step.
	InteractiveStep string `json:"interactive_step"`
	// MemoryUnlimited is why a step may use more memory than it has asked for, "" where it
	// may not.
	MemoryUnlimited string `json:"memory_unlimited"`
}

// JobStack is a job that keeps its plugin stack: File, which names the plugins, is noded's.
type JobStack struct {
	JobID uint32 `json:"job_id"`
	File  string `json:"file"`
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

// Node is the node document of `node status --json` (docs/json.md): noded writes it, its
// clients read it. Fields may be added, none goes. The zero value is no node.
type Node struct {
	Name   string `json:"name"`
	State  string `json:"state"`
	Reason string `json:"reason"`
	// DrainedSince is when the node was drained with this reason, null where it is not, or where an
	// older noded drained it; DrainedBy is "noded", or "root" and what is known of the login.
	DrainedSince *time.Time `json:"drained_since"`
	DrainedBy    string     `json:"drained_by"`
	CPUs         int        `json:"cpus"`
	FreeCPUs     int        `json:"free_cpus"`
	MemoryBytes  uint64     `json:"memory_bytes"`
	// UsableMB is the memory that jobs can have together, in MB: without MemSpecLimit, and not
	// above the limit of noded's cgroup.
	UsableMB uint64 `json:"memory_usable_mb"`
	// UsedMB is the memory that jobs were given, in MB.
	UsedMB    uint64         `json:"memory_used_mb"`
	Select    NodeSelect     `json:"select"`
	Gres      []NodeGres     `json:"gres"`
	Proctrack string         `json:"proctrack"`
	Container string         `json:"container"`
	Fallbacks []NodeFallback `json:"fallbacks"`
	Jobs      []NodeJob      `json:"jobs"`
	// Waiting are the requests that wait for a place (--immediate), the next one of each line first.
	Waiting []NodeWaiting `json:"waiting"`
	// Unkillable are steps of which processes are left that SIGKILL does not end.
	Unkillable []NodeUnkillable `json:"unkillable"`
	// Daemon is noded itself.
	Daemon  NodeDaemon   `json:"daemon"`
	Plugins []NodePlugin `json:"plugins"`
}

// NodeSelect is how the node gives out its CPUs, and which of them are free.
type NodeSelect struct {
	// Plugin is SelectType: "select/cons_tres". Unit is what one job has for itself: "cpu", "core",
	// "socket" or "node".
	Plugin string `json:"plugin"`
	Unit   string `json:"unit"`
	// FreeCPUList are the CPUs that no job has, SpecCPUs the CPUs that no job gets (CoreSpecCount,
	// CpuSpecList): "0-3,8".
	FreeCPUList string `json:"free_cpu_list"`
	SpecCPUs    string `json:"spec_cpus"`
	// Cores counts the node's cores, 0 where they are not known, FreeCores the cores of which no
	// job has a CPU.
	Cores     int `json:"cores"`
	FreeCores int `json:"free_cores"`
}

// NodeGres is one kind of generic resource in the node document.
type NodeGres struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Count uint64 `json:"count"`
	Used  uint64 `json:"used"`
	// UsedIndex are the numbers of the devices that jobs have: "0-1,3".
	UsedIndex string `json:"used_index"`
}

// NodeJob is one running job in the node document.
type NodeJob struct {
	ID     uint32         `json:"job_id"`
	UID    uint32         `json:"uid"`
	User   string         `json:"user"`
	Name   string         `json:"name"`
	Origin step.JobOrigin `json:"origin"`
	CPUs   string         `json:"cpus"`
	// Suspended is since when, null where it is not. CPUsFree: other jobs may have its CPUs meanwhile.
	Suspended *time.Time `json:"suspended"`
	CPUsFree  bool       `json:"cpus_free"`
	// MemoryMB is null where the job was given no share of the memory.
	MemoryMB *uint64 `json:"memory_mb"`
	Gres     string  `json:"gres"`
	// Steps are the numbers of its steps, IDs the steps as users name them.
	Steps []uint32 `json:"steps"`
	IDs   []string `json:"ids"`
	// State is RUNNING, or COMPLETING where the job takes no steps any more; "" of an older noded.
	State string `json:"state"`
	// Doing is "prolog" or "epilog" while the job's runs, else "".
	Doing string `json:"doing"`
	// Started is when the job got its place, null where an older noded made it.
	Started *time.Time `json:"start_time"`
	NTasks  int        `json:"ntasks"`
}

// NodeWaiting is a request that waits for a place.
type NodeWaiting struct {
	UID    uint32 `json:"uid"`
	User   string `json:"user"`
	Name   string `json:"name"`
	NTasks int    `json:"ntasks"`
	// JobID is the job whose CPUs a step waits for, null where the request waits for the node's.
	JobID *uint32   `json:"job_id"`
	Since time.Time `json:"since"`
	// For completes "waiting for".
	For string `json:"for"`
}

// NodeUnkillable is a step with processes that SIGKILL does not end.
type NodeUnkillable struct {
	step.ID
	IDName    string          `json:"id"`
	Since     time.Time       `json:"since"`
	Text      string          `json:"text"`
	Processes []step.Survivor `json:"processes"`
	Total     int             `json:"total"`
}

// NodeDaemon is what noded itself uses: a figure that grows here with the number of steps
// that have run is a leak.
type NodeDaemon struct {
	PID        int `json:"pid"`
	Goroutines int `json:"goroutines"`
	// OpenFiles is null where /proc does not say.
	OpenFiles *int `json:"open_files"`
	// HeapBytes is the memory that Go's objects take.
	HeapBytes uint64 `json:"heap_bytes"`
}

// NodeFallback is a thing that the node does in a lesser way than it was asked to, and why.
type NodeFallback struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// NodePlugin is one line of the plugin stack in the node document, or a finding
// about a line or file that is no plugin: then Path is the file's, and
// State "error" or "warning".
type NodePlugin struct {
	Path     string `json:"path"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Required bool   `json:"required"`
	// State of a plugin is "found", "missing", "incompatible" or "error".
	State string `json:"state"`
	// Problem is everything that is wrong with it, "" where nothing is.
	Problem string `json:"problem"`
	// Release is the release of Slurm for which it was built, "" where it does not say. Hooks are
	// the functions that it exports.
	Release string   `json:"release"`
	Hooks   []string `json:"hooks"`
}

// DryRun describes what a request would do: the document of `run --dry-run --json`.
type DryRun struct {
	Schema int `json:"schema"`
	// The step's number is the one that it would have, if no other came between.
	step.ID
	IDName string   `json:"id"`
	User   string   `json:"user"`
	UID    uint32   `json:"uid"`
	Node   string   `json:"node"`
	Argv   []string `json:"argv"`
	Cwd    string   `json:"cwd"`
	NTasks int      `json:"ntasks"`
	CPUs   string   `json:"cpus"`
	// MemoryMB is null where the step would be given no share of the memory.
	MemoryMB *uint64          `json:"memory_mb"`
	Gres     []step.GresAlloc `json:"gres"`
	GresEnv  []string         `json:"gres_env"`
	// Binding says in words where each task would run.
	Binding []string `json:"binding"`
	// OOMGroup is what the kernel would kill together when memory runs out.
	OOMGroup step.OOMGroup      `json:"oom_group"`
	Memory   []step.MemoryLevel `json:"memory_limits"`
	// Writes are all writes to cgroups, in their order; in a task's %t is the
	// rank and %p its process.
	Writes []step.CgroupWrite `json:"writes"`
	Notes  []string           `json:"notes"`
	// TaskEnv is the environment of rank 0 before its plugins change it; Environment
	// what of that differs from the client's, who adds it.
	TaskEnv     []string    `json:"task_env"`
	Environment []EnvChange `json:"environment"`
	// ResourceLimits are the soft limits that are passed on to the tasks.
	ResourceLimits []ResourceLimit `json:"resource_limits"`
	// Mounts are what the job's container would hide or add, in words; none: the tasks
	// see the node's own.
	Mounts []string `json:"mounts"`
	// Plugins are the stack's, in its order, with the options that they would get.
	Plugins []DryPlugin `json:"plugins"`
}

// EnvChange is a variable whose value would differ between a task and the client.
type EnvChange struct {
	Name string `json:"name"`
	// Change is "added", "changed" or "removed"; By is the program that does it: "stepctl" (with
	// --export), "plugins" of the client's side, "stepd".
	Change string `json:"change"`
	By     string `json:"by"`
	// Value is the task's, Old the client's; null where the variable is not set.
	Value *string `json:"value"`
	Old   *string `json:"old"`
}

// ResourceLimit is a limit (setrlimit(2)) of the tasks: Asked by the client, Hard the
// most that this node allows, Gets the result; null is unlimited.
type ResourceLimit struct {
	Name  string  `json:"name"`
	Asked *uint64 `json:"asked"`
	Hard  *uint64 `json:"hard"`
	Gets  *uint64 `json:"gets"`
	Lower bool    `json:"lower"` // Gets is less than Asked
}

// DryPlugin is a plugin of the stack.
type DryPlugin struct {
	Path     string   `json:"path"`
	Required bool     `json:"required"`
	State    string   `json:"state"`
	Problem  string   `json:"problem,omitempty"`
	Options  []string `json:"options"` // as given: "--name=value"
}
