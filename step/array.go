package step

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ArrayMax is the most that MaxArraySize may be, as in Slurm.
const ArrayMax = 4000001

// arrayTextMax bounds what --array is written in, in bytes.
const arrayTextMax = 64 << 10

// ArrayTask is the place of a job among those of a job array.
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

// Array is what --array asks for.
type Array struct {
	Tasks []uint32 // ascending, each once
	// AtOnce is how many of them may run at a time; 0 is any number.
	AtOnce int
	Step   uint32
}

var errArray = errors.New("write task numbers and ranges, as 0-15:4 or 1,3,5-7, and a limit behind them, as %2")

// ParseArray reads sbatch's form: numbers and ranges, which may have a step, and the
// most tasks that run at a time: "0-15:4%2". Task numbers are below size, which is
// MaxArraySize.
func ParseArray(text string, size int) (*Array, error) {
	if len(text) > arrayTextMax {
		return nil, fmt.Errorf("%d bytes: %d is the limit", len(text), arrayTextMax)
	}
	a := &Array{Step: 1}
	list, limit, limited := strings.Cut(text, "%")
	if limited {
		n, err := strconv.ParseUint(limit, 10, 31)
		if err != nil || n == 0 {
			return nil, errArray
		}
		a.AtOnce = int(n)
	}
	size = max(0, min(size, ArrayMax))
	seen, walked := make([]bool, size), 0
	for _, item := range strings.Split(list, ",") {
		from, to, by, err := arrayRange(item)
		if err != nil {
			return nil, err
		}
		if to >= uint64(size) {
			return nil, fmt.Errorf("task %d: task numbers are below %d (MaxArraySize)", to, size)
		}
		a.Step = uint32(by)
		// A few numbers may be named twice, but nobody means to name all so often.
		if walked += int((to-from)/by) + 1; walked > 2*size {
			return nil, fmt.Errorf("its ranges name more than %d tasks, and many of them again: task numbers are below %d (MaxArraySize)", 2*size, size)
		}
		for n := from; n <= to; n += by {
			seen[n] = true
		}
	}
	if strings.Contains(list, ",") {
		a.Step = 1
	}
	for n, named := range seen {
		if named {
			a.Tasks = append(a.Tasks, uint32(n))
		}
	}
	return a, nil
}

// arrayRange reads "N", "N-M" or "N-M:STEP".
func arrayRange(item string) (from, to, by uint64, err error) {
	item, step, stepped := strings.Cut(item, ":")
	first, last, ranged := strings.Cut(item, "-")
	if !ranged {
		last = first
	}
	by = 1
	if from, err = strconv.ParseUint(first, 10, 32); err != nil {
		return 0, 0, 0, errArray
	}
	if to, err = strconv.ParseUint(last, 10, 32); err != nil || to < from {
		return 0, 0, 0, errArray
	}
	if !stepped {
		return from, to, by, nil
	}
	if by, err = strconv.ParseUint(step, 10, 32); err != nil || by == 0 || !ranged {
		return 0, 0, 0, errArray
	}
	return from, to, by, nil
}

// Of is the place of the i-th task in the array job.
func (a *Array) Of(job uint32, i int) *ArrayTask {
	return &ArrayTask{
		Job: job, Task: a.Tasks[i], Count: uint32(len(a.Tasks)),
		Min: a.Tasks[0], Max: a.Tasks[len(a.Tasks)-1], Step: a.Step,
	}
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
