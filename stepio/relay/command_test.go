package relay

import (
	"os"
	"path/filepath"
	"testing"
)

// Another process's command line controls no terminal.
func TestCommand(t *testing.T) {
	dir := t.TempDir()
	for line, want := range map[string]string{
		"sleep\x00100\x00":          "sleep 100",
		"evil\u009bc\x1b[31m\u202e": "evil?c?[31m?",
		"broken \xff":               "broken ?",
		"é":                         "é",
	} {
		if err := os.WriteFile(filepath.Join(dir, "cmdline"), []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := command(dir); got != want {
			t.Errorf("%q is told as %q, want %q", line, got, want)
		}
	}
}
