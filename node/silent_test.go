package node

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/step"
)

// TestSilentStepd: a step whose stepd does not answer is cancelled, or killed, all the same: after
// UnkillableStepTimeout stepd is killed with it. Other requests fail.
func TestSilentStepd(t *testing.T) {
	tn := start(t, t.TempDir(), func(c *Config) { c.unkillable = 30 * time.Millisecond })
	t.Cleanup(func() { tn.stop() })
	tn.askMax = 30 * time.Millisecond
	for name, end := range map[string]func(id step.ID) error{
		"cancelled by uid 0": func(id step.ID) error {
			_, err := tn.svc.Cancel(as(0), &api.CancelRequest{StepRef: ref(id)})
			return err
		},
		"killed by SIGKILL": func(id step.ID) error {
			_, err := tn.svc.Signal(as(0), &api.SignalRequest{StepRef: ref(id), Signal: int(unix.SIGKILL)})
			return err
		},
	} {
		id := tn.run(1000, request("silent"))
		if _, err := tn.svc.Signal(as(0), &api.SignalRequest{StepRef: ref(id), Signal: int(unix.SIGTERM)}); err == nil || !strings.Contains(err.Error(), "stepd does not answer within 30ms") {
			t.Errorf("SIGTERM: %v", err)
		}
		for range 2 { // a second one changes nothing
			if err := end(id); err != nil && api.CodeOf(err) != api.FailedPrecondition {
				t.Fatalf("%s: %v", name, err)
			}
		}
		rec := tn.wait(id)
		if rec.State != step.Cancelled || !strings.HasPrefix(rec.Reason, name+"; stepd (pid ") || !strings.HasSuffix(rec.Reason, ") did not answer for 30ms and was killed") {
			t.Errorf("step %s: %s %q", id, rec.State, rec.Reason)
		}
		tn.nothingLeft(id)
	}
	tn.idle()
}
