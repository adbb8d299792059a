package node

import (
	"errors"
	"testing"
)

// The words by which stepd says that there is nobody any more to ask something of.
func TestSaysOver(t *testing.T) {
	for text, want := range map[string]bool{
		"cannot send signal 10: the step is COMPLETING": true,
		"cannot send signal 10: the step is FAILED":     true,
		"cannot suspend the step: it is ending":         true,
		"cannot send signal 10: the step is STARTING":   false,
		"cannot send signal 10: the step is suspended":  false,
		"cannot resume the step: it is not suspended":   false,
		"": false,
	} {
		if got := saysOver(errors.New(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
