package linux

import (
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The policy is of the one thread: programs that others start do not have it.
func TestBatchThread(t *testing.T) {
	set, over := make(chan error), make(chan struct{})
	go func() {
		err := BatchThread()
		if err == nil {
			var a *unix.SchedAttr
			if a, err = unix.SchedGetAttr(0, 0); err == nil && a.Policy != unix.SCHED_BATCH {
				t.Errorf("policy %d, want SCHED_BATCH", a.Policy)
			}
		}
		set <- err
		<-over
	}()
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	defer close(over)
	out, err := exec.Command("sh", "-c", `cut -d" " -f41 /proc/$$/stat`).Output() // proc_pid_stat(5): policy
	if err != nil || strings.TrimSpace(string(out)) != "0" {
		t.Errorf("a program has policy %q, %v, want SCHED_NORMAL", out, err)
	}
}
