package linux

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAffinity(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	pid := cmd.Process.Pid
	all, err := Affinity(pid)
	if err != nil {
		t.Fatal(err)
	}
	one := make([]uint64, len(all))
	for i, w := range all {
		if w != 0 {
			one[i] = w & -w // the lowest
			break
		}
	}
	// A mask of 2,048 CPUs, most of which no machine has.
	wide := append(append([]uint64(nil), one...), make([]uint64, 32-len(one))...)
	wide[31] = 1 << 63
	if err := SetAffinity(pid, wide); err != nil {
		t.Fatal(err)
	}
	got, err := Affinity(pid)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i] != one[i] {
			t.Errorf("word %d: got %#x, want %#x", i, got[i], one[i])
		}
	}
	if err := SetAffinity(pid, nil); !errors.Is(err, unix.EINVAL) {
		t.Errorf("an empty mask: %v", err)
	}
	if err := SetAffinity(1<<30, one); !errors.Is(err, unix.ESRCH) {
		t.Errorf("no such process: %v", err)
	}
	if _, err := Affinity(1 << 30); !errors.Is(err, unix.ESRCH) {
		t.Errorf("no such process: %v", err)
	}
}
