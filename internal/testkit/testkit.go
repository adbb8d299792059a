// Package testkit holds what tests of several packages share. It is imported
// by tests only.
package testkit

import (
	"net"
	"os"
	"testing"
	"time"
)

// RequireRoot skips a test that needs root and the kernel's real objects;
// with STRICT=1 in the environment (CI) it fails instead.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("STRICT") == "1" {
		t.Fatal("this test needs root, and STRICT=1 forbids skipping it")
	}
	t.Skip("needs root")
}

// InGuest reports whether the test runs in the guest of integration/vm: systemd
// is process 1, and cgroup v2 has all controllers.
func InGuest() bool { return os.Getenv("STEPD_GUEST") == "1" }

// Fewer returns how many times a test does a thing that it does n times where
// the CPU is real: a tenth in the guest, which is emulated and 10 to 20 times
// slower.
func Fewer(n int) int {
	if InGuest() {
		return max(1, n/10)
	}
	return n
}

// Slower returns how many times longer than on a real CPU a thing may take.
func Slower() int {
	if InGuest() {
		return 20
	}
	return 1
}

// Dial connects to a socket and sends nothing. What the test does with the connection takes no
// longer than limit.
func Dial(t testing.TB, socket string, limit time.Duration) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	return c
}

// Always is an identity that never changes.
func Always(uid uint32) func() uint32 { return func() uint32 { return uid } }
