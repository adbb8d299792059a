package main

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"
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
