package integration

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// churn connects to a socket as a user and closes again, as fast as can be, from many threads. The
// returned function ends that and returns how often it was done.
func churn(t *testing.T, socket string, uid uint32) (stop func() int64) {
	t.Helper()
	var done atomic.Bool
	var times atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			err := asUser(uid, func() error {
				for !done.Load() {
					fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						return err
					}
					err = unix.Connect(fd, &unix.SockaddrUnix{Name: socket})
					unix.Close(fd)
					if err != nil {
						return err
					}
					times.Add(1)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	end := func() int64 {
		done.Store(true)
		wg.Wait()
		return times.Load()
	}
	t.Cleanup(func() { end() })
	return end
}

// TestRootAdoptBesideChurn: logins are let in whatever connections another user makes.
func TestRootAdoptBesideChurn(t *testing.T) {
	n := startNode(t, site{})
	p := n.start(t, call{args: []string{"run", "-J", "held", "sleep", "86400"}, uid: alice.uid})
	doc := n.runs(t, "held")
	stop := churn(t, n.socket(), bob.uid)
	const logins = 100
	failed := filepath.Join(n.dir, "failed")
	// The process that is adopted is adopt's parent, as below pam_exec(8).
	script := fmt.Sprintf("for i in $(seq %d); do sh -c 'PAM_USER=%s PAM_TYPE=account NODED_SOCKET=%s %s adopt --pam || echo $? >> %s; true'; done",
		logins, alice.name, n.socket(), n.bin, failed)
	if r := n.do(t, call{program: "sh", args: []string{"-c", script}, root: true, limit: 5 * callTimeout}); r.code != 0 || r.out != "" || r.err != "" {
		t.Errorf("%d logins: %v", logins, r)
	}
	t.Logf("%d connections came and went beside %d logins", stop(), logins)
	if adopted := strings.Count(n.log.String(), `msg="process adopted"`); adopted != logins {
		t.Errorf("%d processes were adopted", adopted)
	}
	ok(t, "cancel", n.ctlRoot(t, "cancel", doc.id()))
	p.wait(t)
}
