package step

import (
	"fmt"
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

// TestName: one name for a step, which ParseID reads as it does the number; files have the number.
func TestName(t *testing.T) {
	for _, c := range []struct {
		id        ID
		name, key string
	}{
		{ID{17, 0}, "17.0", "17.0"}, {ID{17, BatchStep}, "17.batch", "17.4294967291"},
		{ID{17, ExternStep}, "17.extern", "17.4294967292"}, {ID{17, InteractiveStep}, "17.interactive", "17.4294967290"},
	} {
		if c.id.Name() != c.name || fmt.Sprint(c.id) != c.name || c.id.Key() != c.key {
			t.Errorf("%q, %q, %q, want %q and %q", c.id.Name(), fmt.Sprint(c.id), c.id.Key(), c.name, c.key)
		}
		for _, text := range []string{c.name, c.key} {
			if id, err := ParseID(text); err != nil || id != c.id {
				t.Errorf("ParseID(%q) = %v, %v", text, id, err)
			}
		}
	}
}
