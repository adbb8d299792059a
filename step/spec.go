package step

// Spec is a Request together with what noded decided about it: all that stepd
// needs, so that stepd and the tasks never ask a name service or read a site's
// configuration (design §4).
type Spec struct {
	Request
	Site

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

	Proctrack  Proctrack   `json:"proctrack"`
	Confine    Confinement `json:"confine"`
	Container  string      `json:"container"` // "none", "tmpfs" or "linux"
	RunDir     string      `json:"run_dir"`
	ResultFile string      `json:"result_file"` // where stepd leaves the result when no noded takes it
	// OutputFile is where stepd leaves the output that was kept, at the end; "" is nowhere.
	OutputFile string `json:"output_file,omitempty"`

	// ContainerNS says that descriptor FDContainer is the job's mount
	// namespace; EntireStepInNS that the host joins it before init.
	ContainerNS    bool `json:"container_ns,omitempty"`
	EntireStepInNS bool `json:"entire_step_in_ns,omitempty"`
	// PIDNamespace and UserNamespace say that FDPIDNamespace and FDUserNamespace are
	// the job's, in which its tasks are born and become the user.
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

// JobOrigin says what made a job.
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
	// Tasks is the cgroup of its tasks (absolute), which is empty where Dir is. It
	// lies apart from Dir, so that what the daemons use is never charged to the job.
	Tasks string `json:"tasks,omitempty"`
}
