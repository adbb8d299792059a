package step

import (
	"syscall"
	"testing"
)

func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		status ExitStatus
		want   string
	}{
		{ExitedWith(3), "Exited with exit code 3"},
		{SignaledBy(syscall.SIGKILL), "Killed"},
		{SignaledBy(syscall.SIGSEGV) | 0x80, "Segmentation fault (core dumped)"},
		{SignaledBy(syscall.SIGXCPU), "CPU time limit exceeded"},
		{SignaledBy(64), "Signal 64"},
	} {
		if got := c.status.Describe(); got != c.want {
			t.Errorf("%#x: got %q, want %q", uint32(c.status), got, c.want)
		}
	}
}
