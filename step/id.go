package step

import (
	"fmt"
	"strconv"
	"strings"
)

// Step ids that Slurm reserves (slurm.h: SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT).
const (
	BatchStep  uint32 = 4294967291
	ExternStep uint32 = 4294967292
)

// ID names a job step on a cluster. The zero value is no step: job ids begin at 1.
type ID struct {
	Job  uint32 `json:"job_id"`
	Step uint32 `json:"step_id"`
}

// String is the form that users see and type: "12.0".
func (id ID) String() string { return fmt.Sprintf("%d.%d", id.Job, id.Step) }

// Name is how listings show the id: "12.0", "12.batch".
func (id ID) Name() string {
	if id.Step == BatchStep {
		return fmt.Sprintf("%d.batch", id.Job)
	}
	return id.String()
}

// ParseID reads "12.0" and "12.batch". It returns an error that quotes s for anything else.
func ParseID(s string) (ID, error) {
	j, st, ok := strings.Cut(s, ".")
	if !ok {
		return ID{}, fmt.Errorf("cannot parse step id %q: want JOB.STEP, for example 12.0", s)
	}
	if st == "batch" { // as sacct and scancel have it
		st = strconv.FormatUint(uint64(BatchStep), 10)
	}
	job, err1 := strconv.ParseUint(j, 10, 32)
	num, err2 := strconv.ParseUint(st, 10, 32)
	if err1 != nil || err2 != nil || job == 0 {
		return ID{}, fmt.Errorf("cannot parse step id %q: want JOB.STEP, for example 12.0", s)
	}
	return ID{Job: uint32(job), Step: uint32(num)}, nil
}
