package launch

import "fmt"

// Held is a stream of the tasks that a process has kept open when all processes of
// the step had ended.
type Held struct {
	// FD is 1 or 2, Rank the task's, or AllRanks.
	FD, Rank int
	// PID is the holder, 0 where none could be found; Command is its command line,
	// or its name; UID is its user.
	PID     int
	Command string
	UID     uint32
}

func (h Held) String() string {
	name := map[int]string{1: "stdout", 2: "stderr"}[h.FD]
	if h.Rank != AllRanks {
		name = fmt.Sprintf("%s of task %d", name, h.Rank)
	}
	if h.PID == 0 {
		return name + " held open by a process that is not in /proc (or its reader stands in the kernel)"
	}
	return fmt.Sprintf("%s held open by pid %d (%s) of uid %d", name, h.PID, h.Command, h.UID)
}
