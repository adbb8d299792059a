package child

import (
	"slices"
	"testing"
)

// TestEnviron: what a program of noded's gets of its environment.
func TestEnviron(t *testing.T) {
	for _, e := range [][2]string{{"SITE", "a=b"}, {"NOTIFY_SOCKET", "@x"}, {"WATCHDOG_PID", "1"}, {"LISTEN_FDS", "1"}, {"SLURM_CONF", "/old"}} {
		t.Setenv(e[0], e[1])
	}
	got := Environ("SLURM_CONF=/new", "GOMAXPROCS=1")
	for _, want := range []string{"SITE=a=b", "SLURM_CONF=/new", "GOMAXPROCS=1"} {
		if !slices.Contains(got, want) {
			t.Errorf("want %q in %q", want, got)
		}
	}
	for _, not := range []string{"NOTIFY_SOCKET=@x", "WATCHDOG_PID=1", "LISTEN_FDS=1", "SLURM_CONF=/old"} {
		if slices.Contains(got, not) {
			t.Errorf("%q is for noded alone: %q", not, got)
		}
	}
}
