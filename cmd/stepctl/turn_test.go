package main

import (
	"testing"

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
	busy := &api.Error{Code: api.ResourceExhausted, Message: "does not fit", Waits: "2 CPUs"}
	job := uint32(3)
	for _, c := range []struct {
		immediate immediateOption
		job       *uint32
		busy      error
		asks      int
		waits     int // of the second one
	}{
		{"", nil, busy, 1, 0}, {"0", nil, busy, 1, 0}, {"7", nil, busy, 2, 7}, {"inf", nil, busy, 2, step.WaitForever},
		{"", &job, busy, 2, step.WaitForever}, {"0", &job, busy, 1, 0}, {"7", &job, busy, 2, 7},
		{"inf", nil, api.NewError(api.ResourceExhausted, "never fits"), 1, 0},
	} {
		asks, waits := 0, 0
		_, err := inTurn(&runOptions{immediate: c.immediate, quiet: true}, &step.Request{Job: c.job}, func(in *api.RunRequest) (*api.RunReply, error) {
			asks++
			if in.Request.ImmediateS != nil {
				waits = *in.Request.ImmediateS
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
	_, err := inTurn(&runOptions{immediate: "inf", quiet: true}, new(step.Request), func(*api.RunRequest) (*api.RunReply, error) {
		if asks++; asks == 1 {
			return nil, busy
		}
		return nil, api.NewError(api.Unavailable, "noded is stopping")
	})
	if asks != 2 || api.CodeOf(err) != api.Unavailable {
		t.Errorf("asked %d times: %v", asks, err)
	}
}
