package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRootHeldOpen: a process that has left the step and keeps its stdout does not keep
// the step from ending: after five seconds it is named, with its number and command.
func TestRootHeldOpen(t *testing.T) {
	t.Parallel() // it waits for most of its time
	n := startNode(t, site{})
	parent := "/sys/fs/cgroup"
	if _, err := os.Stat(parent + "/cgroup.controllers"); err != nil {
		parent = "/sys/fs/cgroup/unified" // hybrid
	}
	away := filepath.Join(parent, "heldopen-"+filepath.Base(n.dir))
	must(t, os.Mkdir(away, 0o755))
	pid := 0
	t.Cleanup(func() {
		if pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it has its minute
		}
		eventually(t, callTimeout, "the other cgroup's end", func() error {
			if err := os.Remove(away); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return nil
		})
	})
	r := n.ctlRoot(t, "run", "-l", "sh", "-c", fmt.Sprintf("sleep 60 2>/dev/null & echo $! >%s/cgroup.procs; echo $!", away))
	pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(r.out, "0: ")))
	if must(t, err); r.code != 0 {
		t.Errorf("it has ended well, and run says %v", r)
	}
	held := fmt.Sprintf("stdout of task 0 held open by pid %d (sleep 60) of uid 0", pid)
	contains(t, "stderr", r.err, held)
	contains(t, "explain", n.ctlRoot(t, "explain", "1.0").out, fmt.Sprintf("pid %d", pid))
	var took int64
	for _, line := range strings.Split(n.ctlRoot(t, "events", "1.0").out, "\n") {
		if strings.Contains(line, `"phase":"drain"`) && strings.Contains(line, "dur_us") {
			_, text, _ := strings.Cut(line, `"dur_us":`)
			took, _ = strconv.ParseInt(strings.TrimRight(strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '}' })[0], " "), 10, 64)
		}
	}
	if d := time.Duration(took) * time.Microsecond; d < 5*time.Second {
		t.Errorf("it was waited for during %v, want 5 s at least", d)
	}
}
