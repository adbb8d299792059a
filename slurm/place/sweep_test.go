package place

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"stepd/step"
)

// TestRemoveSocket: the sockets of a dead step and of its components go, and no other step's.
func TestRemoveSocket(t *testing.T) {
	spool := t.TempDir()
	for _, name := range []string{"n1_12.1", "n1_12.1.0", "n1_12.1.17", "n1_12.10", "n1_12.0", "n1_112.1", "n11_12.1", "cred_state"} {
		if err := os.WriteFile(filepath.Join(spool, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &Place{cfg: Config{Spool: spool, Node: "n1"}}
	for range 2 {
		if err := p.removeSocket(step.ID{Job: 12, Step: 1}); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(spool + "/*")
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if want := []string{"cred_state", "n11_12.1", "n1_112.1", "n1_12.0", "n1_12.10"}; err != nil || !slices.Equal(left, want) {
		t.Errorf("%q are left, %v; want %q", left, err, want)
	}
}
