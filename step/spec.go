package step

import (
	"encoding/base64"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// Spec is a Request with noded's decisions about it. It has all that stepd needs, so that
// neither stepd nor a task asks a name service or reads the site's configuration.
type Spec struct {
	Request
	Site

	ID   ID   `json:"id"`
	User User `json:"user"`
	// Origin is the command that made the job. JobNTasks is the task count of the job; a
	// batch step has one task whatever that count is.
	Origin    JobOrigin `json:"origin,omitempty"`
	JobName   string    `json:"job_name,omitempty"` // the step's own is Name
	JobNTasks int       `json:"job_ntasks,omitempty"`
	// JobStarted is when the job got its place, JobLimitS its time limit in seconds; 0 is none.
	JobStarted time.Time `json:"job_started,omitzero"`
	JobLimitS  int       `json:"job_limit_s,omitempty"`

	NodeName string `json:"node_name"`
	// EnvComplete says that Env is the job's environment as its plugins and tasks see it:
	// nothing of the job's is set over it. A daemon sets it whose client has done so.
	EnvComplete bool `json:"env_complete,omitempty"`
	// TaskEnv is set for every task over Env, when its privileged hook has returned, beside
	// what every daemon sets there.
	TaskEnv []string `json:"task_env,omitempty"`
	// ExitEnv is set over Env for the hooks of the tasks' and of the step's end.
	ExitEnv []string `json:"exit_env,omitempty"`
	// Speaker begins each message of the step to its user; "" is "stepd-" and NodeName. A
	// daemon that sets it says by itself when a command ends the step.
	Speaker string `json:"speaker,omitempty"`
	// NodeList are the step's nodes as a host list ("n[1-3]"). NodeID is this node's place
	// in it.
	NodeList string `json:"node_list"`
	NodeID   uint32 `json:"node_id"`
	// JobNodeList are the job's nodes, JobNNodes counts them, and JobNodeCPUs counts the
	// job's CPUs on each node, in the same order. "" and 0 stand for the step's; nil is not
	// known for a job of several nodes.
	JobNodeList string `json:"job_node_list,omitempty"`
	JobNNodes   int    `json:"job_nnodes,omitempty"`
	JobNodeCPUs []int  `json:"job_node_cpus,omitempty"`
	// LaunchAddr is the address of the host on which the launching client runs, ""
	// is this one.
	LaunchAddr string `json:"launch_addr,omitempty"`
	// Layout is where the tasks of a step of several nodes are; nil is this node.
	Layout *Layout `json:"layout,omitempty"`
	// FirstNode and FirstRank are where node 0 and rank 0 stand in a step that several components
	// of a heterogeneous job run together, each on nodes of its own, and AllTasks counts the
	// tasks of all; 0 elsewhere. A Spec is of its component: nodes and ranks count from 0 there,
	// also for plugins. Tasks see the places in the whole step: SeenRank, SeenNodeID.
	FirstNode uint32 `json:"first_node,omitempty"`
	FirstRank int    `json:"first_rank,omitempty"`
	AllTasks  int    `json:"all_tasks,omitempty"`
	// AllLayout has the nodes and ranks of all components of such a step whose ranks use MPI, nil
	// elsewhere. AllNodeID is this node's place in it, which is not the one that tasks see, and
	// AllID the first component's, by which the ranks of all name the step. AllKey is its MPIKey.
	AllLayout *Layout `json:"all_layout,omitempty"`
	AllNodeID uint32  `json:"all_node_id,omitempty"`
	AllID     ID      `json:"all_id,omitzero"`
	AllKey    string  `json:"all_key,omitempty"`
	// Parent is the step whose tasks have spawned this one (MPI_Comm_spawn); nil is
	// none.
	Parent *ID `json:"parent,omitempty"`
	// Preput are keys that the ranks of a spawned step find in their key value space.
	Preput []KeyValue `json:"preput,omitempty"`

	// CPUs is the step's allocation as a list: "0-2". NCPUs counts them.
	CPUs  string `json:"cpus"`
	NCPUs int    `json:"ncpus"`
	// MemoryMB is the step's memory, JobMemoryMB its job's; 0 where the node counts none.
	// They are limits where cgroup.conf says so.
	MemoryMB    uint64 `json:"memory_mb,omitempty"`
	JobMemoryMB uint64 `json:"job_memory_mb,omitempty"`
	// JobCPUs is the job's allocation, as CPUs is the step's. JobAllCPUs counts the job's CPUs on
	// all of its nodes; 0 stands for the count of JobCPUs.
	JobCPUs    string `json:"job_cpus,omitempty"`
	JobAllCPUs int    `json:"job_all_cpus,omitempty"`
	// StepGres and JobGres are the step's and the job's generic resources. GresEnv are the
	// tasks' variables for them, GresUnset the names of variables that would contradict them.
	StepGres  []GresAlloc `json:"step_gres,omitempty"`
	JobGres   []GresAlloc `json:"job_gres,omitempty"`
	GresEnv   []string    `json:"gres_env,omitempty"`
	GresUnset []string    `json:"gres_unset,omitempty"`

	Proctrack  Proctrack   `json:"proctrack"`
	Confine    Confinement `json:"confine"`
	Container  string      `json:"container"` // "none", "tmpfs" or "linux"
	RunDir     string      `json:"run_dir"`
	ResultFile string      `json:"result_file"` // stepd leaves the result here when no noded takes it
	// OutputFile is where stepd leaves the output that was kept, at the end; "" is nowhere.
	OutputFile string `json:"output_file,omitempty"`

	// ContainerNS says that descriptor FDContainer is the job's mount namespace.
	// EntireStepInNS says that the SPANK host joins it before init.
	ContainerNS    bool `json:"container_ns,omitempty"`
	EntireStepInNS bool `json:"entire_step_in_ns,omitempty"`
	// PIDNamespace and UserNamespace say that FDPIDNamespace and FDUserNamespace are the
	// job's namespaces, in which its tasks start and become the user.
	PIDNamespace  bool `json:"pid_namespace,omitempty"`
	UserNamespace bool `json:"user_namespace,omitempty"`
}

// User is the user of the tasks, looked up by noded through the C library.
type User struct {
	Name   string   `json:"name"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups"` // all of them, the primary one included
}

// JobOrigin is the command that made a job.
type JobOrigin string

const (
	OriginRun   JobOrigin = "run"   // stepctl run, outside of a job
	OriginAlloc JobOrigin = "alloc" // stepctl alloc
	OriginBatch JobOrigin = "batch" // stepctl batch
)

// Proctrack names the tracker and its place, which noded has made already.
type Proctrack struct {
	// Kind is "cgroup/v2", "cgroup/v1", "cgroup/hybrid", "linuxproc" or "pgid".
	Kind string `json:"kind"`
	// Dir is the step's cgroup (absolute), with its stepd and SPANK host; empty
	// for trackers without one.
	Dir string `json:"dir,omitempty"`
	// Tasks is the cgroup of its tasks (absolute), "" where Dir is "". It lies apart from
	// Dir, so that the daemons' memory is never charged to the job.
	Tasks string `json:"tasks,omitempty"`
}

// Site is what a site's settings mean for every step of a node. Package site builds it once
// from the site's files, and noded copies it into each Spec: a new key of slurm.conf touches
// the parser, a field here and the package that uses the field. JSON has the fields in the
// Spec's own object.
type Site struct {
	Cluster   string `json:"cluster"`              // "" has no name
	Partition string `json:"partition"`            // "" is none
	SlurmConf string `json:"slurm_conf,omitempty"` // the file, "" without one

	// KillWaitS is the time between SIGTERM and SIGKILL, in seconds. UnkillableS bounds the
	// wait for the end of killed processes, in seconds (UnkillableStepTimeout); 0, in the Spec
	// of an older noded, is 60.
	KillWaitS   int `json:"kill_wait_s"`
	UnkillableS int `json:"unkillable_s,omitempty"`
	// Propagate are the resource limits that the client's shell passes on to the tasks, in
	// upper case without RLIMIT_; nil is all.
	Propagate []string `json:"propagate,omitzero"`
	// PropagatePrio is PropagatePrioProcess: 0, 1 or 2.
	PropagatePrio int `json:"propagate_prio,omitempty"`
	// Scripts are run around each task: TaskProlog and TaskEpilog, "" for none. TimeoutS
	// bounds each script in seconds (PrologEpilogTimeout); 0 is no bound.
	Scripts struct {
		Prolog   string `json:"prolog,omitempty"`
		Epilog   string `json:"epilog,omitempty"`
		TimeoutS int    `json:"timeout_s,omitempty"`
	} `json:"scripts,omitzero"`
	// ReplayBytes is how much output is kept for clients that attach, in bytes (ReplayBytes of
	// stepd.conf); of a terminal it is 64 KiB at least.
	ReplayBytes int64 `json:"replay_bytes,omitempty"`

	// Affinity is nil where task/affinity is not among the task plugins: no task is bound.
	Affinity *AffinityConf `json:"affinity,omitempty"`
	// Acct is how the node accounts for the step. In a Spec the frequency is the request's
	// where it has one.
	Acct Accounting `json:"acct"`
	// MPIConf is what the MPI plugins are given: mpi.conf, and the PMI keys of stepd.conf.
	MPIConf struct {
		PMI2 PMI2Conf `json:"pmi2,omitzero"`
		PMIx PMIxConf `json:"pmix,omitzero"`
	} `json:"mpi_conf,omitzero"`
	Spank SpankConf `json:"spank"`
}

// AffinityConf is the site's TaskPluginParam for task/affinity.
type AffinityConf struct {
	// Default is the type for steps that ask for none: "none", "cores", "sockets" and the
	// like. It takes the place of the automatic binding.
	Default CPUBindKind `json:"default,omitempty"`
	// Autobind is the type where the automatic binding finds no match (Autobind=).
	Autobind CPUBindKind `json:"autobind,omitempty"`
	// Verbose reports each task's binding where the user does not say.
	Verbose bool `json:"verbose,omitempty"`
	// Off is the reason why no task can be bound to CPUs here: slurm.conf's CPUs are not the
	// machine's. "" lets tasks be bound.
	Off string `json:"off,omitempty"`
}

// Accounting is how the node accounts for a step (slurm.conf). The zero value
// samples nothing and reads what the kernel tells at the ends of tasks.
type Accounting struct {
	// Gather is JobAcctGatherType without its prefix; "" is "none".
	Gather string `json:"gather,omitempty"`
	// FrequencyS is the time between samples, 0 for none.
	FrequencyS int `json:"frequency_s,omitempty"`
	// UsePss counts a page that n processes share as 1/n of one, NoShared leaves
	// shared pages out (JobAcctGatherParams).
	UsePss   bool `json:"use_pss,omitempty"`
	NoShared bool `json:"no_shared,omitempty"`
	// OverMemoryKill ends a step whose sampled memory is over its limit.
	OverMemoryKill bool `json:"over_memory_kill,omitempty"`
}

// SpankConf is the part of the settings by which stepd reads and runs the plugin stack.
type SpankConf struct {
	// Plugstack is the file; empty means that there is none.
	Plugstack  string   `json:"plugstack,omitempty"`
	PluginDirs []string `json:"plugin_dirs,omitempty"`
	// Digest is the stack's with which the job began, "" is not known, and Kept is a copy of
	// that stack: it counts where the file has changed since.
	Digest string `json:"digest,omitempty"`
	Kept   string `json:"kept,omitempty"`
	// AllowReleases lists further releases to accept ("20.11", "any").
	AllowReleases []string `json:"allow_releases,omitempty"`
	// HookTimeoutS bounds each hook, in seconds; 0 is no bound.
	HookTimeoutS int `json:"hook_timeout_s,omitempty"`
	// ExitGraceS is how long processes may live, in seconds after the step's end, that
	// plugins have started in slurm_spank_exit; 0 is not at all.
	ExitGraceS int  `json:"exit_grace_s,omitempty"`
	Strict     bool `json:"strict,omitempty"`
	// OptionsOnce calls an option back once that is in the request and in the environment.
	OptionsOnce bool `json:"options_once,omitempty"`
	// RequireSafe refuses a stack that users other than root may change.
	RequireSafe bool `json:"require_safe,omitempty"`
	// Quarantined are optional plugins that are left out, because they have
	// crashed too often (QuarantineAfter). noded fills it in for each step.
	Quarantined []Quarantine `json:"quarantined,omitempty"`
	// Debug logs the plugins' slurm_verbose and slurm_debug messages.
	Debug bool `json:"debug,omitempty"`
	// JSONLog makes the log one of JSON lines, as noded's is.
	JSONLog bool `json:"json_log,omitempty"`
}

// Quarantine is an optional plugin that is left out of steps.
type Quarantine struct {
	Path  string `json:"path"`
	Times int    `json:"times"` // crashes in a row
	Hook  string `json:"hook"`  // of the last one
}

// Why is the cause in words.
func (q Quarantine) Why() string {
	return fmt.Sprintf("crashed %d times in a row, last in %s", q.Times, q.Hook)
}

// String is the line for user and log.
func (q Quarantine) String() string {
	return fmt.Sprintf("spank: optional plugin %q is left out: it %s; stepctl node resume takes it in again", filepath.Base(q.Path), q.Why())
}

// Quarantine finds a plugin by its path.
func (c *SpankConf) Quarantine(path string) (q Quarantine, ok bool) {
	i := slices.IndexFunc(c.Quarantined, func(q Quarantine) bool { return q.Path == path })
	if i < 0 {
		return Quarantine{}, false
	}
	return c.Quarantined[i], true
}

// PMI2Conf bounds what the ranks of a step may ask of stepd by PMI-1 and PMI-2.
// The zero value of each field is its default, which is named beside it.
type PMI2Conf struct {
	// KeyBytes1 bounds a key or a service name under PMI-1, where clients are
	// told it as keylen_max: 256.
	KeyBytes1 int `json:"key_bytes_1,omitempty"`
	// KeyBytes2 bounds a key or a service name under PMI-2: 64, the
	// PMI2_MAX_KEYLEN that clients are compiled with.
	KeyBytes2 int `json:"key_bytes_2,omitempty"`
	// ValueBytes bounds a value or a port: 1024, the PMI2_MAX_VALLEN that
	// clients are compiled with; PMI-1 clients are told it as vallen_max.
	ValueBytes int `json:"value_bytes,omitempty"`
	// FrameBytes bounds a PMI-1 line, a PMI-1 spawn block and a PMI-2 frame:
	// 65536.
	FrameBytes int `json:"frame_bytes,omitempty"`
	// Attributes bounds the key=value pairs of one message: 1024.
	Attributes int `json:"attributes,omitempty"`
	// KeysPerRank bounds the keys that one rank may hold in the key value
	// space, in the node's attributes and in the name service together: 4096.
	KeysPerRank int `json:"keys_per_rank,omitempty"`
	// TotalBytes bounds the memory of all that the ranks store: 32 MiB.
	TotalBytes int `json:"total_bytes,omitempty"`
	// QueueBytes bounds the answers that wait for a rank that does not read:
	// 256 KiB. Beyond it the rank's connection is closed.
	QueueBytes int `json:"queue_bytes,omitempty"`
	// WaitsPerRank bounds the node attributes that one rank may wait for at
	// the same time: 64.
	WaitsPerRank int `json:"waits_per_rank,omitempty"`
	// CloseGrace is how long a rank that closed its connection in the middle
	// is given to end, so that its exit status can be told: 1 s.
	CloseGrace time.Duration `json:"close_grace,omitempty"`
	// FenceTimeout bounds how long ranks wait in a fence for others that live:
	// then the step ends and the missing ranks are named. 0 is no bound.
	FenceTimeout time.Duration `json:"fence_timeout,omitempty"`
	// SpawnTimeout bounds how long srun may take to start a step that ranks spawn; 0 is no bound.
	// noded starts one at once or refuses it.
	SpawnTimeout time.Duration `json:"spawn_timeout,omitempty"`
}

// PMIxConf are the keys of Slurm's mpi.conf that have a meaning here.
type PMIxConf struct {
	// Timeout bounds what waits for another node: a fence, a key: 300 s
	// (PMIxTimeout).
	Timeout time.Duration `json:"timeout,omitempty"`
	// Debug lets the PMIx server log what it does (PMIxDebug).
	Debug bool `json:"debug,omitempty"`
	// Env is set for the PMIx server and for the tasks: "NAME=VALUE" (PMIxEnv).
	Env []string `json:"env,omitempty"`
	// KeepTopology lets each task find out by itself what the machine is like
	// (PMIxShareServerTopology=no).
	KeepTopology bool `json:"keep_topology,omitempty"`
}

// Confinement names the cgroups in which the tasks of a step are limited and accounted
// for. noded makes the directories of job and step and writes their limits; stepd writes
// the limits of single tasks. The zero value confines nothing.
type Confinement struct {
	// V1 are the step's directories in the v1 hierarchies, by controller
	// ("memory", "cpuset", "devices"). On cgroup v2 it is empty: there the step's
	// place is Proctrack.Tasks.
	V1 map[string]string `json:"v1,omitempty"`
	// PerTask gives every task a cgroup of its own, launch.TaskName(rank), in each of these
	// directories. It is set where memory is limited or accounted for by cgroup.
	PerTask bool `json:"per_task,omitempty"`
	// Memory are the levels at which memory is limited, the innermost first.
	Memory []MemoryLevel `json:"memory,omitempty"`
	// OOMGroup kills all of a level when the kernel kills one process of it.
	OOMGroup OOMGroup `json:"oom_group,omitempty"`
	// ProcessesMax bounds the step's processes and threads, which ProcessesDir counts, a directory
	// of v1 or Proctrack.Tasks; 0 is no limit.
	ProcessesMax uint64 `json:"processes_max,omitempty"`
	ProcessesDir string `json:"processes_dir,omitempty"`
	// TaskDeny are devices that single tasks, by local id, must not open beyond what the whole
	// step must not; nil is none. PerTask is set then.
	TaskDeny [][]Device `json:"task_deny,omitempty"`
}

// MemoryLevel is a cgroup whose memory has a limit.
type MemoryLevel struct {
	// Level is "task", "step", "job" or "parent".
	Level string `json:"level"`
	// Dir is the memory cgroup, absolute; a level "task" has the step's.
	Dir string `json:"dir"`
	// Bytes and SwapBytes are the limits; nil is none.
	Bytes     *uint64 `json:"bytes,omitempty"`
	SwapBytes *uint64 `json:"swap_bytes,omitempty"`
}

// OOMGroup is the set of processes that die together when memory runs out.
type OOMGroup string

const (
	OOMGroupNone OOMGroup = ""     // the process that the kernel picks
	OOMGroupTask OOMGroup = "task" // all processes of its task
	OOMGroupStep OOMGroup = "step" // all tasks of the step on this node
)

// CgroupWrite is one value for one file of a cgroup.
type CgroupWrite struct {
	Level string `json:"level"` // "job", "step" or "task"
	Path  string `json:"path"`  // the file; of a device program the directory
	Value string `json:"value"`
	// Deny makes it no write but a device program that is attached to Path, and
	// refuses these devices and nothing else. Value is then its text.
	Deny []Device `json:"deny,omitempty"`
}

// Device is a device node by its numbers.
type Device struct {
	Type  string `json:"type"` // "b" or "c"
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	Path  string `json:"path,omitempty"` // where it was found, for messages
}

// Rule is the device in the form of the v1 files devices.deny and devices.allow.
func (d Device) Rule() string { return fmt.Sprintf("%s %d:%d rwm", d.Type, d.Major, d.Minor) }

// Same reports whether both are one device, wherever their nodes are.
func (d Device) Same(o Device) bool {
	return d.Type == o.Type && d.Major == o.Major && d.Minor == o.Minor
}

// JSON holds text: encoding/json replaces bytes that are no UTF-8. Arguments and
// variables are bytes (a file's name may be Latin-1). Entries that are no text therefore
// travel beside the lists, by their index.

// Pack moves the entries that are no text out of Argv and Env, before a Request or Spec
// is encoded. It replaces the lists, and does not write to the caller's.
func (r *Request) Pack() {
	r.Argv, r.ArgvBinary = pack(r.Argv)
	r.Env, r.EnvBinary = pack(r.Env)
}

// Unpack puts the entries back after decoding. An index out of range is a *FieldError.
func (r *Request) Unpack() error {
	if err := unpack("argv_binary", r.Argv, r.ArgvBinary); err != nil {
		return err
	}
	if err := unpack("env_binary", r.Env, r.EnvBinary); err != nil {
		return err
	}
	r.ArgvBinary, r.EnvBinary = nil, nil
	return nil
}

func pack(list []string) ([]string, map[int]string) {
	var binary map[int]string
	for i, s := range list {
		if utf8.ValidString(s) {
			continue
		}
		if binary == nil {
			binary = make(map[int]string)
			list = append([]string(nil), list...)
		}
		binary[i] = base64.StdEncoding.EncodeToString([]byte(s))
		list[i] = ""
	}
	return list, binary
}

func unpack(field string, list []string, binary map[int]string) error {
	for i, text := range binary {
		if i < 0 || i >= len(list) {
			return &FieldError{field, fmt.Sprintf("there is no entry %d", i)}
		}
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return &FieldError{field, fmt.Sprintf("entry %d: %v", i, err)}
		}
		list[i] = string(b)
	}
	return nil
}

// GresRequest is one entry of --gres: "gpu:a100:2". It counts for each node.
type GresRequest struct {
	Name string `json:"name"`
	// Type is the model, "" for any.
	Type string `json:"type,omitempty"`
	// Count may be 0: the step then has none of the job's.
	Count uint64 `json:"count"`
}

// String is the entry as a user writes it, without a suffix: "gpu:a100:2".
func (g GresRequest) String() string {
	if g.Type == "" {
		return g.Name + ":" + strconv.FormatUint(g.Count, 10)
	}
	return g.Name + ":" + g.Type + ":" + strconv.FormatUint(g.Count, 10)
}

// GresAlloc is a job's or a step's share of one generic resource.
type GresAlloc struct {
	Name  string `json:"name"`
	Type  string `json:"type,omitempty"`
	Count uint64 `json:"count"`
	// Index are the numbers of its devices, ascending; nil where it has no files.
	Index []int `json:"index,omitempty"`
}

func (a GresAlloc) String() string {
	s := a.Name
	if a.Type != "" {
		s += ":" + a.Type
	}
	s += ":" + strconv.FormatUint(a.Count, 10)
	if len(a.Index) > 0 {
		s += "(IDX:" + FormatCPUList(a.Index) + ")"
	}
	return s
}
