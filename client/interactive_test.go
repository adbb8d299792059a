package client

import (
	"slices"
	"strings"
	"testing"
)

func TestInteractiveCommand(t *testing.T) {
	t.Setenv("SHELL", "/bin/my sh")
	t.Setenv("A1", "x y")
	for options, want := range map[string][]string{
		"--interactive --preserve-env --pty $SHELL": {"--interactive", "--preserve-env", "--pty", "/bin/my sh"},
		`--pty "${A1}z" bash -l`:                    {"--pty", "x yz", "bash", "-l"},
	} {
		got, err := interactiveCommand(options)
		if err != nil || len(got) < 2 || got[1] != "run" || !slices.Equal(got[2:], want) {
			t.Errorf("%q: %q, %v, want %q", options, got, err, want)
		}
	}
	if got, err := interactiveCommand(`--pty "bash`); err == nil || !strings.Contains(err.Error(), "InteractiveStepOptions") {
		t.Errorf("%q, %v", got, err)
	}
}
