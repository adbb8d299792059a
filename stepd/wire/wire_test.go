package wire

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"stepd/eventlog"
	"stepd/proctrack"
	"stepd/step"
	"stepd/step/launch"
	"stepd/task"
)

// audience keeps what a step reports, as a program without noded's socket would.
type audience struct {
	mu     sync.Mutex
	said   []string
	states []step.State
}

func (a *audience) Say(line string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, line)
}

func (a *audience) State(rec step.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.states = append(a.states, rec.State)
}

func (a *audience) SayTask(_ int, line string)      { a.Say(line) }
func (a *audience) SayTo(f *os.File)                { f.Close() }
func (a *audience) TaskExited(int, step.ExitStatus) {}
func (a *audience) Progress(step.Record)            {}
func (a *audience) Event(eventlog.Event)            {}
func (a *audience) Hooks(eventlog.HookCalls)        {}
func (a *audience) Log(launch.LogLevel, string)     {}

// noStreams are the streams and the output of a step that has neither.
type noStreams struct{}

func (noStreams) Drain(time.Duration) []launch.Held { return nil }
func (noStreams) Used() bool                        { return false }
func (noStreams) Fill(*step.Record)                 {}

type noOutput struct{}

func (noOutput) OpenTerminal() (int, error) { return -1, os.ErrInvalid }
func (noOutput) Drain()                     {}
func (noOutput) Used() bool                 { return false }

// TestStep runs a step that no noded serves. It ends at its host, which is not beside the
// test's program, and says so under the name that its daemon gave it.
func TestStep(t *testing.T) {
	null := step.Stream{Kind: step.StreamNull}
	spec := &step.Spec{
		Request: step.Request{NTasks: 1, NNodes: 1, CPUsPerTask: 1, Argv: []string{"true"}, Cwd: "/", Stdin: null, Stdout: null, Stderr: null, Unattended: true},
		ID:      step.ID{Job: 1}, NodeName: "vm", Speaker: "slurmstepd-vm", EnvComplete: true,
		Proctrack: step.Proctrack{Kind: proctrack.KindPGID},
	}
	plan, err := task.MakePlan(spec)
	if err != nil {
		t.Fatal(err)
	}
	a := &audience{}
	asked := false
	st, err := Step(plan, Neighbours{
		Audience: a, Streams: noStreams{}, Output: noOutput{}, OnMain: func(f func()) { go f() },
		Services: func() (launch.MPIServices, task.Spawned) { asked = true; return nil, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	rec := st.Run(context.Background())
	if rec.State != step.Failed || !strings.Contains(rec.Reason, "spankhost") {
		t.Errorf("the step is %s: %s", rec.State, rec.Reason)
	}
	if len(a.states) == 0 || a.states[0] != step.Starting || len(a.said) != 1 || !strings.HasPrefix(a.said[0], "slurmstepd-vm: error: ") {
		t.Errorf("reported %v, said %q", a.states, a.said)
	}
	if asked {
		t.Error("a step without an MPI plugin was given services")
	}
}

func TestOpenTracker(t *testing.T) {
	tests := []struct {
		kind, dir, want string // want is the type, or a part of the error
	}{
		{proctrack.KindCgroupV2, "/sys/fs/cgroup/x", "*proctrack.Cgroup"},
		{proctrack.KindCgroupHybrid, "/sys/fs/cgroup/x", "*proctrack.Cgroup"},
		{proctrack.KindLinuxProc, "", "*proctrack.LinuxProc"},
		{proctrack.KindPGID, "", "*proctrack.PGID"},
		{proctrack.KindCgroupV2, "", `directory "" is not absolute`},
		{proctrack.KindCgroupV1, "/sys/fs/cgroup/freezer/x", "*proctrack.Cgroup"},
		{"cgroup/v3", "/x", `cannot open tracker "cgroup/v3": want cgroup/v2`},
		{"", "/x", `cannot open tracker ""`},
	}
	for _, tt := range tests {
		tr, err := openTracker(step.Proctrack{Kind: tt.kind, Dir: tt.dir, Tasks: tt.dir}, false, nil)
		got := fmt.Sprintf("%T", tr)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("openTracker(%q, %q) = %s, want %s", tt.kind, tt.dir, got, tt.want)
		}
	}
}
