package place

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"stepd/internal/linux"
	"stepd/proctrack"
	"stepd/step"
)

// What is killed after a restart is known by number, start time and boot: a
// number alone may be anybody's by then.
func TestPlainTrackerIdentity(t *testing.T) {
	boot, err := linux.BootID()
	if err != nil {
		t.Fatal(err)
	}
	gone := exec.Command("/bin/true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	start, err := linux.StartTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	tracker := &plainTracker{kind: proctrack.KindLinuxProc}
	for _, tc := range []struct {
		name  string
		boot  string
		start uint64
		stepd int
		dies  bool
	}{
		{"of another boot", "another", start, gone.Process.Pid, false},
		{"a number that has come again", boot, start + 1, gone.Process.Pid, false},
		{"a start time that is not known", boot, 0, gone.Process.Pid, false},
		{"a step that never had a stepd", boot, start, 0, false},
		{"the same process", boot, start, gone.Process.Pid, true},
	} {
		rec := &step.Record{
			ID: step.ID{Job: 1}, BootID: tc.boot, StepdPID: tc.stepd, StepdStart: start,
			Survivors: []step.Survivor{{PID: cmd.Process.Pid, Start: tc.start}},
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := tracker.EndStep(ctx, rec)
		cancel()
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		dead := false
		if tc.dies {
			<-ended
			dead = true
		} else {
			select {
			case <-ended:
				dead = true
			default:
			}
		}
		if dead != tc.dies {
			t.Fatalf("%s: dead %v, want %v", tc.name, dead, tc.dies)
		}
	}
}
