package launch

import (
	"strconv"
	"strings"
)

// TaskName is the name of a task's own cgroup below the step's.
func TaskName(rank int) string { return taskPrefix + strconv.Itoa(rank) }

const taskPrefix = "task_"

// TaskRank is the opposite of TaskName. ok is false for a name that is not a task's.
func TaskRank(name string) (rank int, ok bool) {
	digits, ok := strings.CutPrefix(name, taskPrefix)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	return int(n), err == nil && strconv.FormatUint(n, 10) == digits
}
