// Package testkit holds what tests of several packages share. It is imported
// by tests only.
package testkit

import (
	"os"
	"testing"
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
