package testkit

import (
	"os/exec"
	"strings"
	"testing"
)

// LintManual fails the test for what mandoc finds in man pages, down to questions of
// style. Two of these are meant: pages that are made have no date, which would make each
// build another, and their lines are as long as the sentences of their sources.
func LintManual(t testing.TB, files ...string) {
	t.Helper()
	mandoc, err := exec.LookPath("mandoc")
	if err != nil {
		t.Skip("mandoc is not installed")
	}
	// Its exit code says what was found; its output shows whether it has run.
	out, err := exec.Command(mandoc, append([]string{"-T", "lint", "-W", "style"}, files...)...).CombinedOutput()
	if _, found := err.(*exec.ExitError); err != nil && !found {
		t.Fatalf("mandoc: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "missing date, using") && !strings.Contains(line, "input text line longer than 80 bytes") {
			t.Error(strings.TrimSpace(line))
		}
	}
}
