package step

// Schema is the version of every JSON document of this package.
const Schema = 1

// Request is what a client asks noded for. All of it is under a user's
// control, and none of it is believed before Validate and noded's own checks.
type Request struct {
	Schema int `json:"schema"`

	// Job makes the step one of a running job; nil asks for a job of its own.
	Job *uint32 `json:"job,omitempty"`
	// UID and GID name another user; only root may set them.
	UID *uint32 `json:"uid,omitempty"`
	GID *uint32 `json:"gid,omitempty"`

	Name        string `json:"name"`          // -J; shown by ps
	NTasks      int    `json:"ntasks"`        // -n; at least 1
	NNodes      int    `json:"nnodes"`        // at least 1; noded takes 1 alone: several are Slurm's (docs/slurm.md)
	CPUsPerTask int    `json:"cpus_per_task"` // -c; at least 1
	Overcommit  bool   `json:"overcommit,omitempty"`
	// Overlap lets a step of a job share CPUs with the job's other steps, and waits for
	// none of them.
	Overlap bool `json:"overlap,omitempty"`
	// ImmediateS is how long noded lets a request wait that does not fit, in seconds: nil and 0
	// are not at all, WaitForever is as long as the client stays connected.
	ImmediateS *int `json:"immediate_s,omitempty"`
	// Interactive makes it the interactive step of an allocation: one task, which may use
	// all that the job has and holds none of it from other steps.
	Interactive bool `json:"interactive,omitempty"`
	// PreserveEnv leaves the numbers of tasks and nodes in Env as they are, for commands
	// that the step starts (srun --preserve-env).
	PreserveEnv bool `json:"preserve_env,omitempty"`
	// Binding is where on the node the tasks are to run.
	Binding Binding `json:"binding,omitzero"`

	// Mem is --mem in MB: 0 is all of the node's or of the job's, nil is the
	// default. MemPerCPU is --mem-per-cpu in MB, nil without it.
	Mem       *uint64 `json:"mem_mb,omitempty"`
	MemPerCPU *uint64 `json:"mem_per_cpu_mb,omitempty"`
	// Gres is --gres: nil is the default, which is none for a job and all of the
	// job's for a step of it; empty is none.
	Gres []GresRequest `json:"gres,omitzero"`
	// OOMKillStep ends all of the step when memory runs out in it; nil is the
	// default.
	OOMKillStep *bool `json:"oom_kill_step,omitempty"`

	Argv []string `json:"argv"`
	Env  []string `json:"env"` // NAME=VALUE, SLURM_RLIMIT_* included
	// ArgvBinary and EnvBinary hold entries that are no text; see Pack.
	ArgvBinary map[int]string `json:"argv_binary,omitempty"`
	EnvBinary  map[int]string `json:"env_binary,omitempty"`
	Cwd        string         `json:"cwd"`
	// Apps are the commands where the step has several, whose ranks follow each
	// other; Argv is then the first one's.
	Apps []App `json:"apps,omitempty"`
	// Umask of the caller, 0 to 0777.
	Umask uint32 `json:"umask"`

	Stdin  Stream `json:"stdin"`
	Stdout Stream `json:"stdout"`
	Stderr Stream `json:"stderr"`
	Label  bool   `json:"label,omitempty"` // -l: the client labels lines, the tasks know by SLURM_LABELIO
	// Unattended says that no client connects to stepd as the launcher: the tasks wait for
	// none, and no stream is of StreamClient.
	Unattended bool `json:"unattended,omitempty"`
	// Terminal is rank 0's; nil is none. The three streams are then of StreamNull.
	Terminal *Terminal `json:"terminal,omitempty"`

	MPI           string `json:"mpi,omitempty"` // --mpi; empty is MpiDefault
	KillOnBadExit bool   `json:"kill_on_bad_exit,omitempty"`
	// TimeLimitS is how long the step may run, in seconds, without what it stands
	// still (--time); 0 is no limit. Of a batch job and of an allocation it is the
	// job's, whatever its steps ask for.
	TimeLimitS int `json:"time_limit_s,omitempty"`
	// Warn is sent before the time is over; nil is nothing.
	Warn *Warning `json:"warn,omitempty"`
	// OwnLimits: Env has the SLURM_RLIMIT_* variables that the user chose
	// (--propagate); else the site chooses among them (PropagateResourceLimits).
	OwnLimits bool `json:"own_limits,omitempty"`
	// TaskProlog and TaskEpilog are the user's, absolute; "" is none.
	TaskProlog string `json:"task_prolog,omitempty"`
	TaskEpilog string `json:"task_epilog,omitempty"`
	NoNewPrivs bool   `json:"no_new_privs,omitempty"`

	// AcctgFreq is the time between two samples of the tasks' accounting, in
	// seconds; 0 is never, nil JobAcctGatherFrequency.
	AcctgFreq *int `json:"acctg_freq,omitempty"`

	SubmitHost string `json:"submit_host,omitempty"`

	// SpankOptions were given to the local side and are called back on the
	// remote one, in this order.
	SpankOptions []SpankOption `json:"spank_options,omitempty"`
	// JobControl is what plugins set with spank_job_control_setenv, and the
	// options as OptionVariable: NAME=VALUE, for prolog and epilog. It counts
	// for a request that makes a job.
	JobControl [][]byte `json:"job_control,omitempty"`
	// Script makes the request one of a batch job: NTasks and CPUsPerTask are
	// the job's, whose batch step is one task that runs this script. Argv is
	// then its name, as the user gave it, and its arguments.
	Script []byte `json:"script,omitempty"`
	// Array is the job's place in a job array, nil without one, and RestartCount how often the
	// job has run before: a controller's words, which the tasks, the plugins and the file name
	// patterns are told. Only root may set them. A step of a running job has the job's.
	Array        *ArrayTask `json:"array_task,omitempty"`
	RestartCount uint32     `json:"restart_count,omitempty"`
	// As are the numbers that the job and the step are to have; nil is the next ones. Only
	// root may set it.
	As *Numbers `json:"id,omitempty"`
}

// Numbers are the numbers that a controller gives to a job and a step of it.
type Numbers struct {
	// Job is the number of the job that the request makes, or of the running one that it
	// names.
	Job uint32 `json:"job"`
	// Step is the step's number; nil is the next one. Batch steps and jobs without a step
	// have none to choose.
	Step *uint32 `json:"step,omitempty"`
}

// WaitForever is an ImmediateS without a limit.
const WaitForever = -1

// StreamKind says where one of a task's three standard streams goes.
type StreamKind string

const (
	// StreamClient: descriptors that the client attaches to stepd's socket.
	StreamClient StreamKind = "client"
	// StreamNull: /dev/null.
	StreamNull StreamKind = "null"
	// StreamFile: a file that each task opens as the user, by Pattern.
	StreamFile StreamKind = "file"
	// StreamSame: stderr only: the same open file as stdout.
	StreamSame StreamKind = "same"
)

// Stream describes one standard stream of all tasks.
type Stream struct {
	Kind StreamKind `json:"kind"`
	// Pattern is srun's file name pattern (%j %J %s %t %n %N %u %x %A %a %%).
	Pattern string `json:"pattern,omitempty"`
	// Rank restricts the stream to one task; the others get /dev/null.
	Rank *int `json:"rank,omitempty"`
	// Append opens with O_APPEND alone; without it the file is truncated first.
	Append bool `json:"append,omitempty"`
}

// Spec is a Request together with what noded decided about it: all that stepd
// needs, so that stepd and the tasks never ask a name service or read a site's
// configuration (design §4).
type Spec struct {
	Request

	ID   ID   `json:"id"`
	User User `json:"user"`
	// Origin is what made the job; JobNTasks is the task count of the job: a
	// batch step has one task of its own.
	Origin    JobOrigin `json:"origin,omitempty"`
	JobName   string    `json:"job_name,omitempty"` // the step's own is Name
	JobNTasks int       `json:"job_ntasks,omitempty"`

	NodeName string `json:"node_name"`
	// EnvComplete says that Env is the job's environment as its plugins and tasks see it:
	// nothing of the job's is set over it. A daemon sets it whose client has done so.
	EnvComplete bool `json:"env_complete,omitempty"`
	// Speaker begins each message of the step to its user; "" is "stepd-" and NodeName.
	Speaker string `json:"speaker,omitempty"`
	// NodeList are the step's nodes as a host list ("n[1-3]"), NodeID is the place of
	// this one among them.
	NodeList string `json:"node_list"`
	NodeID   uint32 `json:"node_id"`
	// JobNodeList are the job's nodes, JobNNodes counts them, and JobNodeCPUs are the
	// CPUs that it has on each of them, in their order. "" and 0 stand for the
	// step's; nil is not known where there are several.
	JobNodeList string `json:"job_node_list,omitempty"`
	JobNNodes   int    `json:"job_nnodes,omitempty"`
	JobNodeCPUs []int  `json:"job_node_cpus,omitempty"`
	// LaunchAddr is the address of the host on which the launching client runs, ""
	// is this one.
	LaunchAddr string `json:"launch_addr,omitempty"`
	// Layout is where the tasks of a step of several nodes are; nil is this node.
	Layout *Layout `json:"layout,omitempty"`
	// Parent is the step whose tasks have spawned this one (MPI_Comm_spawn); nil is
	// none.
	Parent *ID `json:"parent,omitempty"`
	// Preput are keys that its ranks find in their key value space.
	Preput []KeyValue `json:"preput,omitempty"`

	// CPUs is the step's allocation as a list: "0-2". NCPUs counts them.
	CPUs  string `json:"cpus"`
	NCPUs int    `json:"ncpus"`
	// MemoryMB is the memory that the step was given, JobMemoryMB its job's;
	// 0 where none was counted. They are limits where cgroup.conf says so.
	MemoryMB    uint64 `json:"memory_mb,omitempty"`
	JobMemoryMB uint64 `json:"job_memory_mb,omitempty"`
	// JobCPUs is the job's allocation, as CPUs is the step's.
	JobCPUs string `json:"job_cpus,omitempty"`
	// StepGres and JobGres are what step and job have of the node's generic
	// resources. GresEnv are the tasks' variables of it, and GresUnset the
	// variables that would tell them something else.
	StepGres  []GresAlloc `json:"step_gres,omitempty"`
	JobGres   []GresAlloc `json:"job_gres,omitempty"`
	GresEnv   []string    `json:"gres_env,omitempty"`
	GresUnset []string    `json:"gres_unset,omitempty"`

	Cluster   string `json:"cluster"`
	Partition string `json:"partition"`
	SlurmConf string `json:"slurm_conf,omitempty"`

	// MPIConf is what the site says to MPI plugins.
	MPIConf   MPIConf     `json:"mpi_conf,omitzero"`
	Spank     SpankConf   `json:"spank"`
	Proctrack Proctrack   `json:"proctrack"`
	Confine   Confinement `json:"confine"`
	// Affinity is what the site says about the binding of tasks; nil binds none:
	// task/affinity is not among the task plugins.
	Affinity   *AffinityConf `json:"affinity,omitempty"`
	Acct       Accounting    `json:"acct"`
	Container  string        `json:"container"` // "none", "tmpfs" or "linux"
	RunDir     string        `json:"run_dir"`
	ResultFile string        `json:"result_file"` // where stepd leaves the result when no noded takes it
	// ReplayBytes is how much output is kept for clients that attach (ReplayBytes of
	// stepd.conf); of a terminal it is 64 KiB at least. OutputFile is where stepd
	// leaves it at the end; "" is nowhere.
	ReplayBytes int64  `json:"replay_bytes,omitempty"`
	OutputFile  string `json:"output_file,omitempty"`
	KillWaitS   int    `json:"kill_wait_s"`
	// Propagate are the resource limits that the site passes on to the tasks, in upper
	// case without RLIMIT_; nil is all.
	Propagate []string `json:"propagate,omitzero"`
	// PropagatePrio is PropagatePrioProcess: 0, 1 or 2.
	PropagatePrio int `json:"propagate_prio,omitempty"`
	// Scripts are the scripts that the site runs around each task.
	Scripts TaskScripts `json:"scripts,omitzero"`
	// UnkillableS is UnkillableStepTimeout in seconds; 0, of an older noded, is 60.
	UnkillableS int `json:"unkillable_s,omitempty"`

	// ContainerNS says that descriptor FDContainer is the job's mount
	// namespace; EntireStepInNS that the host joins it before init.
	ContainerNS    bool `json:"container_ns,omitempty"`
	EntireStepInNS bool `json:"entire_step_in_ns,omitempty"`
	// PIDNamespace and UserNamespace say that FDPIDNamespace and FDUserNamespace are
	// the job's, in which its tasks are born and become the user.
	PIDNamespace  bool `json:"pid_namespace,omitempty"`
	UserNamespace bool `json:"user_namespace,omitempty"`
}

// TaskScripts are TaskProlog and TaskEpilog of slurm.conf; "" is none.
type TaskScripts struct {
	Prolog string `json:"prolog,omitempty"`
	Epilog string `json:"epilog,omitempty"`
	// TimeoutS bounds each in seconds (PrologEpilogTimeout); 0 is none.
	TimeoutS int `json:"timeout_s,omitempty"`
}

// User is the user of the tasks, looked up by noded through the C library.
type User struct {
	Name   string   `json:"name"`
	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups"` // all of them, the primary one included
}

// SpankConf is what stepd needs to read the plugin stack.
type SpankConf struct {
	// Plugstack is the file; empty means that there is none.
	Plugstack  string   `json:"plugstack,omitempty"`
	PluginDirs []string `json:"plugin_dirs,omitempty"`
	// AllowReleases lists further releases to accept ("20.11", "any").
	AllowReleases []string `json:"allow_releases,omitempty"`
	// HookTimeoutS bounds each hook, in seconds; 0 is no bound.
	HookTimeoutS int  `json:"hook_timeout_s,omitempty"`
	Strict       bool `json:"strict,omitempty"`
	// RequireSafe refuses a stack that users other than root may change.
	RequireSafe bool `json:"require_safe,omitempty"`
	// Quarantined are optional plugins that are left out, because they have
	// crashed too often (QuarantineAfter).
	Quarantined []Quarantine `json:"quarantined,omitempty"`
	// Debug lets the log hear what plugins say to slurm_verbose and slurm_debug.
	Debug bool `json:"debug,omitempty"`
	// JSONLog makes the log one of JSON lines, as noded's is.
	JSONLog bool `json:"json_log,omitempty"`
}

// Proctrack names the tracker and its place, which noded has made already.
type Proctrack struct {
	// Kind is "cgroup/v2", "cgroup/v1", "cgroup/hybrid", "linuxproc" or "pgid".
	Kind string `json:"kind"`
	// Dir is the step's cgroup (absolute), with its stepd and SPANK host; empty
	// for trackers without one.
	Dir string `json:"dir,omitempty"`
	// Tasks is the cgroup of its tasks (absolute), which is empty where Dir is. It
	// lies apart from Dir, so that what the daemons use is never charged to the job.
	Tasks string `json:"tasks,omitempty"`
}
