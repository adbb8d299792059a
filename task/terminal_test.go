package task

import (
	"errors"
	"slices"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

// A terminal is rank 0's three streams; it is drained when nothing writes any more.
func TestTerminal(t *testing.T) {
	r := newRig(t)
	r.spec.Terminal = &step.Terminal{}
	null := step.Stream{Kind: step.StreamNull}
	r.spec.Stdin, r.spec.Stdout, r.spec.Stderr = null, null, null
	if rec := r.run(t); rec.State != step.Completed {
		t.Fatalf("the step is %s: %s", rec.State, rec.Reason)
	}
	var got []launch.TaskStream
	for _, s := range r.launch.Streams {
		if s.Kind == launch.StreamToTerminal {
			got = append(got, s)
		} else if s.Kind != launch.StreamToNull || s.LocalID != launch.AllRanks {
			t.Errorf("stream %+v: the other ranks have none", s)
		}
	}
	if len(got) != 3 || got[2] != (launch.TaskStream{LocalID: 0, FD: 2, Kind: launch.StreamToTerminal, Handle: 77}) {
		t.Errorf("rank 0 has %+v", got)
	}
	if drain, end := slices.Index(r.calls, "drain"), slices.Index(r.calls, "destroy"); drain < end || end < 0 {
		t.Errorf("drained at the wrong time: %v", r.calls)
	}
}

func TestTerminalFails(t *testing.T) {
	r := newRig(t)
	r.spec.Terminal = &step.Terminal{}
	r.fail["open terminal"] = errors.New("no pty is left")
	rec := r.run(t)
	if rec.State != step.Failed || rec.Reason != "streams: no pty is left" {
		t.Errorf("the step is %s: %s", rec.State, rec.Reason)
	}
	if slices.Contains(r.calls, "fork") {
		t.Errorf("tasks were forked: %v", r.calls)
	}
}
