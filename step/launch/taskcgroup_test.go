package launch

import (
	"testing"

	"stepd/step"
)

func TestTaskRank(t *testing.T) {
	for _, rank := range []int{0, 7, step.TasksMax} {
		if got, ok := TaskRank(TaskName(rank)); !ok || got != rank {
			t.Errorf("%s is %d, %v", TaskName(rank), got, ok)
		}
	}
	for _, name := range []string{"", "task_", "task_-1", "task_+1", "task_07", "task_1x", "Task_1", "task_99999999999"} {
		if rank, ok := TaskRank(name); ok {
			t.Errorf("%q is rank %d", name, rank)
		}
	}
}
