package step

import "fmt"

// ArrayTask is the place of a job in a job array.
type ArrayTask struct {
	// Job is the number of the array, which is its first job's.
	Job uint32 `json:"job"`
	// Task is the number by which users know the job: "JOB_TASK".
	Task uint32 `json:"task"`
	// Count, Min and Max are of all tasks; Step is between two of them, 1 where they
	// were not asked for by a step.
	Count uint32 `json:"count"`
	Min   uint32 `json:"min"`
	Max   uint32 `json:"max"`
	Step  uint32 `json:"step"`
}

// Env is what every command of the job is told.
func (t *ArrayTask) Env() []string {
	if t == nil {
		return nil
	}
	return []string{
		fmt.Sprintf("SLURM_ARRAY_JOB_ID=%d", t.Job), fmt.Sprintf("SLURM_ARRAY_TASK_ID=%d", t.Task), fmt.Sprintf("SLURM_ARRAY_TASK_COUNT=%d", t.Count),
		fmt.Sprintf("SLURM_ARRAY_TASK_MAX=%d", t.Max), fmt.Sprintf("SLURM_ARRAY_TASK_MIN=%d", t.Min), fmt.Sprintf("SLURM_ARRAY_TASK_STEP=%d", t.Step),
	}
}
