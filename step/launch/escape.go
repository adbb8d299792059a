package launch

import "fmt"

// Escape is a living process of a step that is not in the step's cgroups: root
// has moved it, as logind does where a task starts a session of its own.
type Escape struct {
	PID int
	// Comm is under the user's control.
	Comm string
	// Cgroup is where it is, as /proc/PID/cgroup has it.
	Cgroup string
}

func (e Escape) String() string {
	return fmt.Sprintf("process %d (%q) was moved out of the step's cgroup to %q", e.PID, e.Comm, e.Cgroup)
}
