package slurmstepd

import (
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"stepd/slurm/munge"
	"stepd/slurm/rpc"
	"stepd/slurm/wire"
	"stepd/step"
	"stepd/stepd/report"
	"stepd/task"
)

// TestSrunSilent: an srun that takes messages and answers none does not keep the step.
func TestSrunSilent(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var text strings.Builder
	log := logrus.New()
	log.SetOutput(&text)
	d := &daemon{log: log, spec: new(step.Spec), plan: new(task.Plan), stream: &wire.Stream{Batch: &wire.Batch{Cred: new(wire.Cred)}}, peers: &peers{
		log: log, launcher: l.Addr().String(), srun: rpc.Client{Munge: munge.Client{Socket: silentMunge(t)}, Timeout: time.Hour},
	}}
	a := &audience{
		d: d, messages: make(chan wire.Message, messagesMax), sent: make(chan struct{}), running: make(chan struct{}),
		patience: 100 * time.Millisecond,
	}
	a.ends = report.NewEnds(a.tellEnds)
	a.connect(t.Context(), nil)
	for range 100 {
		a.tell(&wire.TaskExit{})
	}
	begun := time.Now()
	a.finish(t.Context(), new(step.Record))
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the end has waited for srun for %v", took)
	}
	if !strings.Contains(text.String(), "cannot report all to srun") || strings.Count(text.String(), "\n") > 3 {
		t.Errorf("the log has %q", text.String())
	}
}

// silentMunge is a munged that takes requests and answers none.
func silentMunge(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "munge")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return path
}

// TestLaunchFailed: srun waits for each task of which it knows nothing, so that a launch that
// has failed names them all.
func TestLaunchFailed(t *testing.T) {
	m := failedLaunch(wire.StepID{Job: 12}, "n1", []int{2, 5}, launchFailed)
	if m.RC != launchFailed || m.Node != "n1" || !slices.Equal(m.Ranks, []uint32{2, 5}) || !slices.Equal(m.PIDs, []uint32{0, 0}) {
		t.Errorf("srun is sent %+v", m)
	}
}

// TestEndsAfterHost: when the SPANK host dies, no task's end is told while the step runs, and
// srun waits for each.
func TestEndsAfterHost(t *testing.T) {
	told := map[int]step.ExitStatus{}
	a := &audience{d: &daemon{plan: &task.Plan{Ranks: []int{4, 5, 6}}}, ends: report.NewEnds(func(ranks []int, status step.ExitStatus) {
		for _, r := range ranks {
			if _, twice := told[r]; twice {
				t.Errorf("the end of rank %d is told twice", r)
			}
			told[r] = status
		}
	})}
	seven := step.ExitedWith(7)
	a.TaskExited(4, seven)
	a.endOthers(&step.Record{Tasks: []step.Task{{Rank: 4, Status: &seven}, {Rank: 5, Status: &seven}, {Rank: 6}}})
	a.ends.Tell()
	if want := map[int]step.ExitStatus{4: seven, 5: seven, 6: killed}; !maps.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// TestLastExit: srun learns of the last tasks when slurmctld has been sent the step's end.
func TestLastExit(t *testing.T) {
	d := &daemon{stream: &wire.Stream{Launch: &wire.Launch{}}, plan: &task.Plan{Ranks: []int{0, 1, 2}}, peers: &peers{launcher: "srun"}}
	a := &audience{d: d, messages: make(chan wire.Message, messagesMax)}
	d.aud = a
	for _, m := range []struct {
		ranks []int
		last  bool
	}{{[]int{0, 2}, false}, {[]int{1}, true}} {
		a.tellExit(m.ranks, 0)
		if _, last := (<-a.messages).(lastExit); last != m.last {
			t.Errorf("the end of %v is the last: %v", m.ranks, last)
		}
	}
}

// TestLastExitLate: it does not wait for processes that cannot be killed, nor for what has been done.
func TestLastExitLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &audience{endSent: make(chan struct{})}
		begun := time.Now()
		if a.awaitEnd(); time.Since(begun) != lastExitPatience {
			t.Errorf("an end that does not come is waited for %v", time.Since(begun))
		}
		a.settleEnd()
		begun = time.Now()
		if a.awaitEnd(); time.Since(begun) != 0 {
			t.Errorf("an end that has been sent is waited for %v", time.Since(begun))
		}
	})
}
