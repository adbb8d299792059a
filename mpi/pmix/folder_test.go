package pmix

import (
	"errors"
	"os/exec"
	"testing"

	"stepd/step/launch"
)

// TestShowToDeadHost: that the host is gone is said as everywhere, so that the step's reason names
// what has killed it.
func TestShowToDeadHost(t *testing.T) {
	dead := exec.Command("true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	p := &Plugin{rankBook: &rankBook{job: launch.MPIJob{HostPID: dead.Process.Pid}}}
	if err := p.showFolder(); !errors.Is(err, launch.ErrHostGone) {
		t.Errorf("got %v", err)
	}
}
