package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestRootUnkillableDirectory: a step whose working directory is on a file system that does not
// answer can be cancelled, before any task of it has run.
func TestRootUnkillableDirectory(t *testing.T) {
	t.Parallel()
	n := startNode(t, site{Slurm: quickKill})
	h := n.mountHang(t)
	p := n.start(t, call{args: []string{"run", "-D", filepath.Join(h.dir, "lost"), "true"}})
	var id string
	eventually(t, callTimeout, "a process that waits for the file system", func() error {
		steps := n.ps(t)
		if len(steps) == 0 {
			return errors.New("ps shows no step")
		}
		id = steps[0].id()
		for _, pr := range n.processes() {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pr.pid)); string(b) == "request_wait_answer" {
				return nil
			}
		}
		return fmt.Errorf("step %s is %s, and none does", id, steps[0].State)
	})
	ok(t, "cancel", n.ctl(t, "cancel", id))
	r := p.wait(t)
	doc := n.ended(t, id)
	if r.code != 1 || doc.State != "CANCELLED" || doc.Tasks[0].State != "FAILED" || doc.Tasks[0].ExitCode != nil {
		t.Errorf("run: %v; record %+v", r, doc)
	}
	contains(t, "reason", doc.Reason, "cancelled by uid", `"spankhost" (state D: uninterruptible sleep in request_wait_answer`, h.dir)
	contains(t, "explain", n.ctl(t, "explain", id).out, "before its tasks ran", "the launch stopped at its stage user_init")
	h.end()
	n.freed(t)
}
