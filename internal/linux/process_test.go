package linux

import (
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

const statLine = "89653 (gunicorn: ) S 1 (x) S 89630 89653 89653 0 -1 4194560 29689 28896 0 3 146 32 76 19 20 0 1 0 2971844 52965376 3920 18446744073709551615 1 1 0\n"

func TestParseStart(t *testing.T) {
	if start, err := parseStart([]byte(statLine)); err != nil || start != 2971844 {
		t.Errorf("start %d, %v", start, err)
	}
	for _, text := range []string{"", "89653", "1 (x) S 1 2 3", strings.Replace(statLine, "2971844", "-1", 1)} {
		if start, err := parseStart([]byte(text)); err == nil {
			t.Errorf("%q: start %d", text, start)
		}
	}
}

func FuzzParseStart(f *testing.F) {
	f.Add(statLine)
	f.Add("1 (")
	f.Fuzz(func(t *testing.T, text string) {
		if start, err := parseStart([]byte(text)); err != nil && start != 0 && !strings.Contains(err.Error(), "range") {
			t.Fatalf("%d, %v", start, err)
		}
	})
}

// TestChildStopped: a child is stopped until it goes on, however often that is asked.
func TestChildStopped(t *testing.T) {
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGCHLD)
	defer signal.Stop(told)
	cmd := exec.Command("sleep", "86400")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if ChildStopped(cmd.Process.Pid) {
		t.Error("it is stopped already")
	}
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		want := sig == syscall.SIGSTOP
		for late := time.After(10 * time.Second); ChildStopped(cmd.Process.Pid) != want; {
			select {
			case <-told: // it may be of another child's
			case <-late:
				t.Fatalf("after %v: stopped is %v", sig, !want)
			}
		}
		if ChildStopped(cmd.Process.Pid) != want {
			t.Errorf("after %v it is stopped only once", sig)
		}
	}
	if ChildStopped(1) {
		t.Error("process 1 is a stopped child")
	}
}
