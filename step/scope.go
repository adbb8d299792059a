package step

// Whom a signal to a step is for.
const (
	ScopeLeader = "leader" // the process of the step's first task: a batch job's script
	ScopeTasks  = "tasks"  // the process of each task
	ScopeCgroup = "cgroup" // every process of the step
)
