package report

import (
	"runtime/debug"
	"time"

	"stepd/internal/linux"
)

// TrimAfter is how long a step runs before its daemon's memory is given back: a short one is over
// before.
const TrimAfter = 300 * time.Millisecond

// Trim gives back what the launch has left and a long step need not carry: garbage, and
// the pages of the program, which are read again from the page cache where they are needed. That
// they are not given back changes nothing for the step.
func Trim() {
	debug.FreeOSMemory()
	_ = linux.DropProgramPages()
}
