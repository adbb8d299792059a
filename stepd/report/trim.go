package report

import (
	"runtime/debug"
	"time"

	"stepd/internal/linux"
)

// TrimAfter is how long a step runs before its daemon's memory is given back: a short one is over
// before.
const TrimAfter = 300 * time.Millisecond

// collectFrom is from how many tasks on a launch leaves more garbage than its collection takes of
// memory itself, a quarter of a megabyte (measured).
const collectFrom = 100

// Trim gives back what the launch of so many tasks has left and a long step need not carry: garbage,
// and the pages of the program, which are read again from the page cache where they are needed. That
// they are not given back changes nothing for the step. Its caller does nothing after it.
func Trim(tasks int) {
	if tasks >= collectFrom {
		debug.FreeOSMemory()
	}
	_ = linux.DropProgramPages()
}
