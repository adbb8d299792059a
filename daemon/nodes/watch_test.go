package nodes

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"stepd/daemon"
)

// A watcher who says nothing, or not all, does not hold the connection.
func TestSilentWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		go theirs.Write([]byte{0, 0, 0, 9, '{'})
		begun := time.Now()
		watch(ours, daemon.View{})
		if took := time.Since(begun); took != firstWait {
			t.Errorf("it was let go after %v, want %v", took, firstWait)
		}
	})
}
