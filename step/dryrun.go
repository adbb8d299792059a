package step

// DryRun is what a request would come to: the document of `run --dry-run --json`.
type DryRun struct {
	Schema int `json:"schema"`
	// The step's number is the one that it would have, if no other came between.
	ID
	User   string   `json:"user"`
	UID    uint32   `json:"uid"`
	Node   string   `json:"node"`
	Argv   []string `json:"argv"`
	Cwd    string   `json:"cwd"`
	NTasks int      `json:"ntasks"`
	CPUs   string   `json:"cpus"`
	// MemoryMB is null where the step would be given no share of the memory.
	MemoryMB *uint64     `json:"memory_mb"`
	Gres     []GresAlloc `json:"gres"`
	GresEnv  []string    `json:"gres_env"`
	// Binding says in words where each task would run.
	Binding []string `json:"binding"`
	// OOMGroup is what would die together for want of memory.
	OOMGroup OOMGroup      `json:"oom_group"`
	Memory   []MemoryLevel `json:"memory_limits"`
	// Writes are all writes to cgroups, in their order; in those of tasks %t is
	// the rank and %p its process.
	Writes []CgroupWrite `json:"writes"`
	Notes  []string      `json:"notes"`
	// Parts are what each node of a step of several would do; what differs by node is
	// then there alone. Ranks are those of the node, in a part.
	Parts []DryRun `json:"parts,omitempty"`
	Ranks string   `json:"ranks,omitempty"`
}
