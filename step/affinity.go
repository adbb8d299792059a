package step

// AffinityConf is what the site says about task/affinity: TaskPluginParam.
type AffinityConf struct {
	// Default is the type for steps that ask for none: CPUBindNone, or one that is
	// dealt, as CPUBindCores. It goes before the automatic binding.
	Default CPUBindKind `json:"default,omitempty"`
	// Autobind is the type where the automatic binding finds no match (Autobind=).
	Autobind CPUBindKind `json:"autobind,omitempty"`
	// Verbose reports each task's binding where the user does not say.
	Verbose bool `json:"verbose,omitempty"`
	// Off says why no task can be bound to CPUs here: their numbers are not the
	// machine's. "" lets them be bound.
	Off string `json:"off,omitempty"`
}

// MemMode is how the kernel takes memory for a task, as set_mempolicy(2) numbers it.
type MemMode uint32

const (
	MemPreferred MemMode = 1 // of the node, and of others where it has none
	MemBound     MemMode = 2 // of the nodes, and of no others
	MemLocal     MemMode = 4 // of the node on which the task runs
)

// MemPolicy is the memory policy of one task, or of all (LocalID AllRanks).
type MemPolicy struct {
	LocalID int
	Mode    MemMode
	// Nodes are the memory nodes as the kernel's bit mask; empty for MemLocal.
	Nodes []uint64
}
