package main

import (
	"encoding/json"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

func TestImmediate(t *testing.T) {
	seconds := func(n int) *int { return &n }
	for in, want := range map[string]*int{"": nil, "0": seconds(0), "1": seconds(1), "inf": seconds(step.WaitForever), "3600": seconds(3600)} {
		got, err := immediateOption(in).seconds()
		if err != nil || (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"-1", "soon", "1.5", "99999999999"} {
		if got, err := immediateOption(in).seconds(); err == nil {
			t.Errorf("%q was read as %d", in, *got)
		}
	}
	o, _, err := parse(t, "-I", "true")
	if err != nil || o.immediate != "1" {
		t.Errorf("-I: %q, %v", o.immediate, err)
	}
}

// A request waits as long as --immediate says: without it steps of a job wait, and jobs do
// not.
func TestInTurn(t *testing.T) {
	busy, err := status.New(codes.ResourceExhausted, "does not fit").WithDetails(&api.Waits{What: "2 CPUs"})
	if err != nil {
		t.Fatal(err)
	}
	job := uint32(3)
	for _, c := range []struct {
		immediate immediateOption
		job       *uint32
		busy      error
		asks      int
		waits     int // of the second one
	}{
		{"", nil, busy.Err(), 1, 0}, {"0", nil, busy.Err(), 1, 0}, {"7", nil, busy.Err(), 2, 7}, {"inf", nil, busy.Err(), 2, step.WaitForever},
		{"", &job, busy.Err(), 2, step.WaitForever}, {"0", &job, busy.Err(), 1, 0}, {"7", &job, busy.Err(), 2, 7},
		{"inf", nil, status.Error(codes.ResourceExhausted, "never fits"), 1, 0},
	} {
		asks, waits := 0, 0
		_, err := inTurn(&runOptions{immediate: c.immediate, quiet: true}, &step.Request{Job: c.job}, func(doc []byte) (*api.RunReply, error) {
			asks++
			var req step.Request
			if err := json.Unmarshal(doc, &req); err != nil {
				t.Fatal(err)
			}
			if req.ImmediateS != nil {
				waits = *req.ImmediateS
				return new(api.RunReply), nil
			}
			return nil, c.busy
		})
		if asks != c.asks || waits != c.waits || (err == nil) != (c.asks == 2) {
			t.Errorf("--immediate=%s: asked %d times, to wait %d s: %v", c.immediate, asks, waits, err)
		}
	}
	// A job's request is forgotten with noded, and could be met twice.
	asks := 0
	_, err = inTurn(&runOptions{immediate: "inf", quiet: true}, new(step.Request), func([]byte) (*api.RunReply, error) {
		if asks++; asks == 1 {
			return nil, busy.Err()
		}
		return nil, status.Error(codes.Unavailable, "noded is stopping")
	})
	if asks != 2 || status.Code(err) != codes.Unavailable {
		t.Errorf("asked %d times: %v", asks, err)
	}
}
