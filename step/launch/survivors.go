package launch

import (
	"fmt"

	"stepd/step"
)

// SurvivorsError names the processes that were left when the wait for their end
// was given up. errors.Is sees Cause, which is the context's.
type SurvivorsError struct {
	// Where is the place that was to be emptied: `cgroup "/…"`, or "the step of stepd 12".
	Where     string
	Survivors []step.Survivor
	// Total counts them all; Survivors has the first of them.
	Total int
	Cause error
}

// Error is one line.
func (e *SurvivorsError) Error() string {
	text := fmt.Sprintf("cannot kill all processes of %s: %s", e.Where, e.Left())
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Unwrap returns the cause.
func (e *SurvivorsError) Unwrap() error { return e.Cause }

// Left names the processes that are left, in one line. Where Survivors lists fewer than
// Total, the line says so.
func (e *SurvivorsError) Left() string {
	text := fmt.Sprintf("%d left", max(e.Total, len(e.Survivors)))
	for i, s := range e.Survivors {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		text += sep + s.String()
	}
	if len(e.Survivors) > 0 && e.Total > len(e.Survivors) {
		text += ", ..."
	}
	return text
}
