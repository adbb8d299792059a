package linux

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// The policy is of the one thread, whose nice value stays: programs that others start do
// not have it.
func TestBatchThread(t *testing.T) {
	set, over := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		err := unix.Setpriority(unix.PRIO_PROCESS, 0, 19)
		if err == nil {
			err = BatchThread()
		}
		if err == nil {
			var a *unix.SchedAttr
			if a, err = unix.SchedGetAttr(0, 0); err == nil && (a.Policy != unix.SCHED_BATCH || a.Nice != 19) {
				t.Errorf("policy %d, nice %d, want SCHED_BATCH, 19", a.Policy, a.Nice)
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
