package step

import "fmt"

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
