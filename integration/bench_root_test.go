package integration

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"stepd/internal/testkit"
)

// TestRootBench: the benchmark's tables can be made, whatever the figures are.
func TestRootBench(t *testing.T) {
	testkit.RequireRoot(t)
	binary := binary(t, "noded")
	out, err := exec.Command("go", "run", "./bench", "-bin", filepath.Dir(binary), "-quick", "-runs", "1", "-run", "client,phases,memory,kill,events,select").CombinedOutput()
	t.Logf("%s", out)
	must(t, err)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "not measured") && !strings.Contains(line, "slurmctld is not installed") {
			t.Errorf("%s", line)
		}
	}
}
