package step

import (
	"fmt"
	"strconv"
	"strings"
)

// Step ids that Slurm reserves (slurm.h: SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT,
// SLURM_EXTERN_CONT).
const (
	InteractiveStep uint32 = 4294967290
	BatchStep       uint32 = 4294967291
	ExternStep      uint32 = 4294967292
)

const (
	// JobsEnd ends the numbers of jobs: from it on they are Slurm's marks, NO_VAL and INFINITE
	// among them (slurm.h).
	JobsEnd = 0xfffffff0
	// StepsEnd ends the numbers of steps that are counted: the numbers that Slurm reserves
	// come soon behind it.
	StepsEnd = BatchStep - 16
)

// reservedNames are what users call the reserved steps, as in sacct and scancel.
var reservedNames = map[uint32]string{InteractiveStep: "interactive", BatchStep: "batch", ExternStep: "extern"}

// ID names a job step on a cluster. The zero value is no step: job ids begin at 1.
type ID struct {
	Job  uint32 `json:"job_id"`
	Step uint32 `json:"step_id"`
}

// Key is the id in numbers, "12.4294967291": in names of files and values of protocols, which no user
// reads.
func (id ID) Key() string { return fmt.Sprintf("%d.%d", id.Job, id.Step) }

// Name is the id that users, logs and messages have: "12.0", "12.batch", "12.extern",
// "12.interactive".
func (id ID) Name() string {
	if name, ok := reservedNames[id.Step]; ok {
		return fmt.Sprintf("%d.%s", id.Job, name)
	}
	return id.Key()
}

// String is Name.
func (id ID) String() string { return id.Name() }

// ParseID reads the forms of Name. It returns an error that quotes s for anything else.
func ParseID(s string) (ID, error) {
	j, st, ok := strings.Cut(s, ".")
	if !ok {
		return ID{}, fmt.Errorf("cannot parse step id %q: want JOB.STEP, for example 12.0", s)
	}
	for number, name := range reservedNames {
		if st == name {
			st = strconv.FormatUint(uint64(number), 10)
		}
	}
	job, err1 := strconv.ParseUint(j, 10, 32)
	num, err2 := strconv.ParseUint(st, 10, 32)
	if err1 != nil || err2 != nil || job == 0 {
		return ID{}, fmt.Errorf("cannot parse step id %q: want JOB.STEP, for example 12.0", s)
	}
	return ID{Job: uint32(job), Step: uint32(num)}, nil
}

// ArrayTask is a job's place in its job array.
type ArrayTask struct {
	// Job is the number of the array, which is its first job's.
	Job uint32 `json:"job"`
	// Task is the number by which users know the job: "JOB_TASK".
	Task uint32 `json:"task"`
	// Count, Min and Max describe the numbers of all tasks. Step is the distance between two
	// numbers, 1 where the user gave none.
	Count uint32 `json:"count"`
	Min   uint32 `json:"min"`
	Max   uint32 `json:"max"`
	Step  uint32 `json:"step"`
}

// Env are the variables of the array for every command of the job.
func (t *ArrayTask) Env() []string {
	if t == nil {
		return nil
	}
	return []string{
		fmt.Sprintf("SLURM_ARRAY_JOB_ID=%d", t.Job), fmt.Sprintf("SLURM_ARRAY_TASK_ID=%d", t.Task), fmt.Sprintf("SLURM_ARRAY_TASK_COUNT=%d", t.Count),
		fmt.Sprintf("SLURM_ARRAY_TASK_MAX=%d", t.Max), fmt.Sprintf("SLURM_ARRAY_TASK_MIN=%d", t.Min), fmt.Sprintf("SLURM_ARRAY_TASK_STEP=%d", t.Step),
	}
}
