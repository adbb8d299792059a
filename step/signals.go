package step

// Whom a signal to a step is for.
const (
	ScopeLeader = "leader" // the process of the step's first task: a batch job's script
	ScopeTasks  = "tasks"  // the process of each task
	ScopeCgroup = "cgroup" // every process of the step
)

// Warning is a signal that announces the time limit to the tasks (--signal).
type Warning struct {
	Signal  int `json:"signal"`
	BeforeS int `json:"before_s"` // seconds before the end
	// Batch sends it to a job's batch script; else the job's other steps get it.
	Batch bool `json:"batch,omitempty"`
}
