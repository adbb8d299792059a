package step

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

	NodeName string `json:"node_name"`
	// EnvComplete says that Env is the job's environment as its plugins and tasks see it:
	// nothing of the job's is set over it. A daemon sets it whose client has done so.
	EnvComplete bool `json:"env_complete,omitempty"`
	// Speaker begins each message of the step to its user; "" is "stepd-" and NodeName.
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
	// JobCPUs is the job's allocation, as CPUs is the step's.
	JobCPUs string `json:"job_cpus,omitempty"`
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
