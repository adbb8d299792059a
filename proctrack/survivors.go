package proctrack

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runc/libcontainer/system"
)

// Survivor is a process that SIGKILL has not ended.
type Survivor struct {
	PID  int
	Comm string
	// State is proc_pid_stat(5)'s in words: "disk sleep", "zombie".
	State string
	// Wchan is the kernel function that it sleeps in; empty if not known.
	Wchan string
}

// SurvivorsError says which processes were left when the wait for their end
// was given up. Cause, the context's, is what errors.Is sees.
type SurvivorsError struct {
	// Where is what was to be emptied: a cgroup, or "the step of stepd 12".
	Where     string
	Survivors []Survivor
	// Total counts them all; Survivors has the first of them.
	Total int
	Cause error
}

// survivorsShown bounds the error: a fork bomb may leave thousands.
const survivorsShown = 8

func newSurvivorsError(where string, pids []int, cause error) *SurvivorsError {
	e := &SurvivorsError{Where: where, Total: len(pids), Cause: cause}
	for _, pid := range pids[:min(len(pids), survivorsShown)] {
		e.Survivors = append(e.Survivors, describe(pid))
	}
	return e
}

// Error is one line: comm is under the user's control, hence quoted.
func (e *SurvivorsError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "cannot kill all processes of %s: %d left", e.Where, e.Total)
	for i, s := range e.Survivors {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&b, "%spid %d %q (%s", sep, s.PID, s.Comm, s.State)
		if s.Wchan != "" {
			fmt.Fprintf(&b, " in %s", s.Wchan)
		}
		b.WriteByte(')')
	}
	if e.Total > len(e.Survivors) {
		b.WriteString(", ...")
	}
	fmt.Fprintf(&b, ": %v", e.Cause)
	return b.String()
}

func (e *SurvivorsError) Unwrap() error { return e.Cause }

// describe tells what /proc knows; a process that ended meanwhile says so.
func describe(pid int) Survivor {
	s := Survivor{PID: pid, Comm: "?", State: "gone"}
	stat, err := system.Stat(pid)
	if err != nil {
		return s
	}
	s.Comm, s.State = stat.Name, stat.State.String()
	wchan, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "wchan"))
	if err == nil && string(wchan) != "0" {
		s.Wchan = string(wchan)
	}
	return s
}
