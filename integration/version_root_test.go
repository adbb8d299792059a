package integration

import (
	"os/exec"
	"strings"
	"testing"
)

// TestRootVersion: each program names the build that it is of, in the same line, and
// does nothing else.
func TestRootVersion(t *testing.T) {
	t.Parallel()
	first := ""
	for _, name := range []string{"noded", "stepctl", "stepd"} {
		for _, option := range []string{"--version", "-V"} {
			out, err := exec.Command(binary(t, name), option).CombinedOutput()
			if err != nil {
				t.Errorf("%s %s: %v: %s", name, option, err, out)
				continue
			}
			line := string(out)
			if first == "" {
				first = line
			}
			version, ok := strings.CutPrefix(line, "stepd ")
			if !ok || strings.TrimSpace(version) == "" || strings.Count(line, "\n") != 1 || line != first {
				t.Errorf("%s %s says %q, others %q", name, option, line, first)
			}
		}
	}
}
