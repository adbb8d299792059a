package step

// Confinement says in which cgroups the tasks of a step are limited and
// accounted for. noded has made the directories of
// job and step, and has written their limits; stepd writes single tasks' limits.
// The zero value confines nothing.
type Confinement struct {
	// V1 are the step's directories in the v1 hierarchies, by controller
	// ("memory", "cpuset", "devices"). On cgroup v2 it is empty: there the step's
	// place is Proctrack.Tasks.
	V1 map[string]string `json:"v1,omitempty"`
	// PerTask gives every task a cgroup of its own, TaskName(rank), in each of
	// these directories: where memory is limited or accounted for by cgroup.
	PerTask bool `json:"per_task,omitempty"`
	// Memory are the levels at which memory is limited, the innermost first.
	Memory []MemoryLevel `json:"memory,omitempty"`
	// OOMGroup kills all of a level when the kernel kills one process of it.
	OOMGroup OOMGroup `json:"oom_group,omitempty"`
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

// OOMGroup is what dies together when memory runs out.
type OOMGroup string

const (
	OOMGroupNone OOMGroup = ""     // the process that the kernel picks
	OOMGroupTask OOMGroup = "task" // all processes of its task
	OOMGroupStep OOMGroup = "step" // all tasks of the step on this node
)
