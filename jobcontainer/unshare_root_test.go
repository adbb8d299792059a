package jobcontainer

import (
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/testkit"
)

// TestRootUnshareAbove: a mount namespace gets a higher number than any other has, on
// whichever CPU that was made.
func TestRootUnshareAbove(t *testing.T) {
	testkit.RequireRoot(t)
	if _, known := mountID("/proc/self/ns/mnt"); !known {
		t.Log("this kernel does not tell their numbers (before Linux 6.11): one is made, and no more can be said")
	}
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatal(err)
	}
	on := func(f func() error) {
		t.Helper()
		done := make(chan error, 1)
		onDisposableThread(func() { done <- f() })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	var highest uint64
	for cpu := range len(all) * 64 {
		if !all.IsSet(cpu) {
			continue
		}
		on(func() error {
			var one unix.CPUSet
			one.Set(cpu)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				return err
			}
			err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
			made, _ := mountID("/proc/thread-self/ns/mnt")
			highest = max(highest, made)
			return err
		})
	}
	for range 8 { // wherever the thread begins
		on(func() error {
			if err := unshareAbove(highest); err != nil {
				return err
			}
			var now unix.CPUSet
			err := unix.SchedGetaffinity(0, &now)
			if made, known := mountID("/proc/thread-self/ns/mnt"); known && made <= highest {
				t.Errorf("number %d, and not above %d", made, highest)
			}
			if now != all {
				t.Errorf("the thread stays on CPUs %v", now)
			}
			return err
		})
	}
}
