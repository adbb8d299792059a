package linux

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
)

// TestRootEnterMounts: the thread that enters is in the namespace, no other is, and
// what is no mount namespace is refused by name.
func TestRootEnterMounts(t *testing.T) {
	testkit.RequireRoot(t)
	link := func() string {
		s, err := os.Readlink("/proc/thread-self/ns/mnt")
		if err != nil {
			t.Error(err)
		}
		return s
	}
	// own runs f on a thread that ends with it.
	own := func(f func()) {
		done := make(chan struct{})
		go func() {
			defer close(done)
			runtime.LockOSThread()
			f()
		}()
		<-done
	}
	before := link()
	var ns *os.File
	var made string
	own(func() {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			t.Error(err)
			return
		}
		made = link()
		var err error
		if ns, err = os.Open("/proc/thread-self/ns/mnt"); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	defer ns.Close()
	own(func() {
		if err := EnterMounts(nil); err != nil || link() != before {
			t.Errorf("nil is the node's own: %v, %q", err, link())
		}
		if err := EnterMounts(ns); err != nil || link() != made {
			t.Errorf("want %q, got %v, %q", made, err, link())
		}
	})
	own(func() {
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Error(err)
			return
		}
		defer null.Close()
		if err := EnterMounts(null); err == nil || !strings.Contains(err.Error(), "the job's mount namespace: setns: invalid argument") {
			t.Errorf("got %v", err)
		}
	})
	if after := link(); after != before {
		t.Errorf("this thread was moved from %q to %q", before, after)
	}
}
