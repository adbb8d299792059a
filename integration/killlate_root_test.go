package integration

import (
	"testing"
	"time"
)

// TestRootKillLate: a task that is still on its way when another has ended the step
// hears SIGTERM all the same, and does not live until SIGKILL.
func TestRootKillLate(t *testing.T) {
	n := startNode(t, site{Slurm: "KillWait=30\n"})
	n.stack(t, "required "+buildRude(t, n)+" hook=task_init_privileged rank=0 do=late")
	begun := time.Now()
	r := n.ctl(t, "run", "-n2", "-K", "sh", "-c", "test $SLURM_PROCID = 1 && exit 4; exec sleep 60")
	if took := time.Since(begun); r.code != 143 || took > 25*time.Second {
		t.Errorf("after %v: %v", took, r)
	}
	contains(t, "stderr", r.err, "stepctl: error: vm: task 0: Terminated")
}
