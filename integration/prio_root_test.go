package integration

import (
	"fmt"
	"strings"
	"testing"
)

// TestRootPropagatePrio: the tasks' nice value is the daemons', the command's, or
// at least one more than the daemons' (slurm.conf(5), PropagatePrioProcess).
func TestRootPropagatePrio(t *testing.T) {
	for mode, want := range []string{"0 1\n0 1", "0 unset\n5 unset", "1 unset\n5 unset"} {
		n := startNode(t, site{Slurm: fmt.Sprintf("PropagatePrioProcess=%d\n", mode)})
		script := `for n in 0 5; do env -u SLURM_PRIO_PROCESS nice -n $n "$STEPCTL" run sh -c 'echo $(nice) ${SLURM_PRIO_PROCESS+1}${SLURM_PRIO_PROCESS-unset}' | sed 's/1[05]$/1/'; done`
		r, err := runRow(n.srunCommand(t, n.wd, script))
		if must(t, err); strings.TrimSpace(r.out) != want || r.code != 0 {
			t.Errorf("PropagatePrioProcess=%d: %q, want %q: %v", mode, r.out, want, r)
		}
	}
}
