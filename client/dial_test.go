package client

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"stepd/step"
)

// That no noded serves a socket is said with the remedy, whether the socket is left or not.
func TestNoNoded(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for _, path := range []string{stale, filepath.Join(dir, "noded.sock"), filepath.Join(dir, "no", "noded.sock")} {
		err := clientAt(path).Reach(t.Context())
		if want := fmt.Sprintf("cannot connect to noded at %q: start it (systemctl start noded)", path); err == nil || err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestStepRef(t *testing.T) {
	if r, err := ParseRef("12.3"); err != nil || r.JobID != 12 || r.StepID == nil || *r.StepID != 3 {
		t.Errorf("12.3: %v, %v", r, err)
	}
	if r, err := ParseRef("12.batch"); err != nil || *r.StepID != step.BatchStep {
		t.Errorf("12.batch: %v, %v", r, err)
	}
	if r, err := ParseRef("12"); err != nil || r.JobID != 12 || r.StepID != nil {
		t.Errorf("12: %v, %v", r, err)
	}
	for _, s := range []string{"", "0", "x", "1.x", "1.2.3", "-1", "99999999999"} {
		if r, err := ParseRef(s); err == nil {
			t.Errorf("%q was read as %v", s, r)
		}
	}
}
