package step

import (
	"strings"
	"testing"
)

func TestArrayEnv(t *testing.T) {
	want := "SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_MAX=8 SLURM_ARRAY_TASK_MIN=2 SLURM_ARRAY_TASK_STEP=3"
	a := &ArrayTask{Job: 7, Task: 5, Count: 3, Min: 2, Max: 8, Step: 3}
	if got := strings.Join(a.Env(), " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := (*ArrayTask)(nil).Env(); got != nil {
		t.Errorf("of no array: %q", got)
	}
}
