package task

import (
	"slices"
	"strings"
	"testing"
	"time"

	"stepd/step"
	"stepd/step/launch"
)

type fakeStreams struct{ held []launch.Held }

func (f fakeStreams) Drain(limit time.Duration) []launch.Held { return f.held }
func (f fakeStreams) Used() bool                              { return true }
func (f fakeStreams) Fill(rec *step.Record) {
	n := int64(7)
	rec.StdoutBytes = &n
}

// The process that kept a stream open is reported to the user and in the event log, and the
// step's end stays what it is.
func TestHeldStreams(t *testing.T) {
	r := newRig(t)
	held := launch.Held{FD: 1, Rank: 0, PID: 4711, Command: "sleep 99", UID: 7}
	r.streams = fakeStreams{[]launch.Held{held}}
	rec := r.run(t)
	if rec.State != step.Completed || rec.StdoutBytes == nil || *rec.StdoutBytes != 7 || rec.StderrBytes != nil {
		t.Errorf("record %+v", rec)
	}
	want := "stdout of task 0 held open by pid 4711 (sleep 99) of uid 7"
	if !slices.ContainsFunc(r.said, func(s string) bool { return strings.Contains(s, want) }) {
		t.Errorf("said %q", r.said)
	}
}
