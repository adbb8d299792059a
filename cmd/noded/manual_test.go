package main

import (
	"os"
	"path/filepath"
	"testing"

	"stepd/internal/testkit"
)

func TestManPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "noded.8")
	if err := os.WriteFile(path, []byte(page(command()).Roff()), 0o600); err != nil {
		t.Fatal(err)
	}
	testkit.LintManual(t, path)
}
