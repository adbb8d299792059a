package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRootAllocRevoked: an allocation is cancelled; its command gets a signal
// at once, and alloc ends with the command's exit code.
func TestRootAllocRevoked(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	for script, code := range map[string]int{"touch up; exec sleep 86399": 129, "trap 'exit 7' HUP; touch up; while :; do sleep 0.05; done": 7} {
		p := n.start(t, call{args: []string{"alloc", "sh", "-c", "stepctl run true; " + script}, env: []string{"PATH=" + strings.TrimSuffix(n.bin, "/stepctl") + ":/usr/bin:/bin"}})
		up := filepath.Join(n.wd, "up")
		eventually(t, callTimeout, "the command", func() error { _, err := os.Stat(up); return err })
		must(t, os.Remove(up))
		step := n.lastEnded(t)
		if r := n.ctl(t, "cancel", strings.TrimSuffix(step.id(), ".0")); r.code != 0 {
			t.Errorf("cancel: %v", r)
		}
		r := p.wait(t)
		if r.code != code {
			t.Errorf("%q: want %d, got %v", script, code, r)
		}
		contains(t, "stderr", r.err, "Granted job allocation", "has been revoked", "Relinquishing job allocation")
		if strings.Contains(r.err, "error:") {
			t.Errorf("stderr: %q", r.err)
		}
		n.checkClean(t)
	}
}
