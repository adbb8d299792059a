package launch

import (
	"strings"
	"testing"

	"stepd/step"
)

func TestSpawnError(t *testing.T) {
	err := &SpawnError{ID: step.ID{Job: 3, Step: 2}, Failed: map[int]string{2: "x", 1: "x"}, Cause: "execve(): x: No such file or directory"}
	if got := err.Error(); !strings.Contains(got, "3.2 (rank 1-2): execve()") {
		t.Errorf("%q", got)
	}
}
