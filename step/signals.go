package step

// The receivers of a signal to a step.
const (
	ScopeLeader = "leader" // the process of the step's first task: a batch job's script
	ScopeTasks  = "tasks"  // the process of each task
	ScopeCgroup = "cgroup" // every process of the step
)

// Warning is a signal that announces the time limit to the tasks (--signal).
type Warning struct {
	Signal  int `json:"signal"`
	BeforeS int `json:"before_s"` // seconds before the end
	// Batch sends the signal to a job's batch script, and not to the job's other steps.
	Batch bool `json:"batch,omitempty"`
}
