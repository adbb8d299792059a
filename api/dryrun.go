package api

import (
	"stepd/step"
)

// DryRun describes what a request would do: the document of `run --dry-run --json`.
type DryRun struct {
	Schema int `json:"schema"`
	// The step's number is the one that it would have, if no other came between.
	step.ID
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
