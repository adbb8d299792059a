package client

import (
	"slices"
	"testing"

	"stepd/api"
	"stepd/client/options"
	"stepd/srunopt"
	"stepd/step"
)

// A request waits as long as --immediate says: without it steps of a job wait, and jobs do
// not.
func TestInTurn(t *testing.T) {
	busy := &api.Error{Code: api.ResourceExhausted, Message: "does not fit", Waits: "2 CPUs"}
	job := uint32(3)
	for _, c := range []struct {
		immediate string
		job       *uint32
		busy      error
		asks      int
		waits     int // of the second one
	}{
		{"", nil, busy, 1, 0}, {"0", nil, busy, 1, 0}, {"7", nil, busy, 2, 7}, {"inf", nil, busy, 2, srunopt.WaitForever},
		{"", &job, busy, 2, srunopt.WaitForever}, {"0", &job, busy, 1, 0}, {"7", &job, busy, 2, 7},
		{"inf", nil, api.NewError(api.ResourceExhausted, "never fits"), 1, 0},
	} {
		asks, waits := 0, 0
		_, err := admitted(&options.Run{Immediate: options.Immediate(c.immediate), Quiet: true}, &step.Request{Job: c.job}, func(in *api.RunRequest) (*api.RunReply, error) {
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
	_, err := admitted(&options.Run{Immediate: "inf", Quiet: true}, new(step.Request), func(*api.RunRequest) (*api.RunReply, error) {
		if asks++; asks == 1 {
			return nil, busy
		}
		return nil, api.NewError(api.Unavailable, "noded is stopping")
	})
	if asks != 2 || api.CodeOf(err) != api.Unavailable {
		t.Errorf("asked %d times: %v", asks, err)
	}
}

// A job that is made from inside a step has steps of its own, which wait for their share of
// it, and not the binding of the outer one.
func TestOutsideStep(t *testing.T) {
	for _, c := range []struct{ env, want []string }{
		{[]string{"A=1", "SLURM_STEP_ID=0", "SLURM_STEPID=0", "SLURM_CPU_BIND=quiet,mask_cpu:0x1", "SLURM_HINT=multithread", "SLURM_CPU_BIND_TYPE=x"}, []string{"A=1", "SLURM_CPU_BIND_TYPE=x"}},
		{[]string{"SLURM_CPU_BIND=cores", "SLURM_STEP_IDS=1"}, []string{"SLURM_CPU_BIND=cores", "SLURM_STEP_IDS=1"}},
	} {
		env := slices.Clone(c.env)
		if got := outsideStep(env); !slices.Equal(got, c.want) || !slices.Equal(env, c.env) {
			t.Errorf("%q: got %q", c.env, got)
		}
	}
}
