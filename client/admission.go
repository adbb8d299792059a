package client

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"stepd/api"
	"stepd/client/options"
	"stepd/client/terminal"
	"stepd/srunopt"
	"stepd/step"
)

// admitted asks for what req describes, by ask. Where that has to wait, and may, inTurn says
// what for and asks again.
func admitted[R any](o *options.Run, req *step.Request, ask func(*api.RunRequest) (R, error)) (reply R, err error) {
	patience, err := o.Immediate.Seconds()
	if err != nil {
		return reply, err
	}
	asked := *req
	send := func() (R, error) { return ask(&api.RunRequest{Request: &asked}) }
	reply, err = send()
	what := waitsFor(err)
	if patience == nil && req.Job != nil { // as srun's steps wait in a job
		patience = new(srunopt.WaitForever)
	}
	if what == "" || patience == nil || *patience == 0 {
		return reply, err
	}
	if !o.Quiet {
		terminal.Say("waiting for %s", what)
	}
	asked.ImmediateS = patience
	if req.Job == nil { // nothing of it is left in a noded that is gone
		return send()
	}
	return reconnecting(send)
}

// reconnecting asks for a step of a job, and again while noded is gone: the job, and the
// steps that are waited for, go on.
func reconnecting[R any](ask func() (R, error)) (R, error) {
	for gone := (time.Time{}); ; {
		began := time.Now()
		reply, err := ask()
		if api.CodeOf(err) != api.Unavailable {
			return reply, err
		}
		if gone.IsZero() || time.Since(began) > time.Second {
			gone = began
		}
		if time.Since(gone) > reconnectFor {
			return reply, err
		}
		// Only trying shows when a socket is served again.
		time.Sleep(200 * time.Millisecond)
	}
}

// waitsFor is what a request that was refused could wait for, "" if it could not.
func waitsFor(err error) string {
	if e, ok := api.AsError(err); ok {
		return e.Waits
	}
	return ""
}

// withinStep reports whether this is a command of a step of the job: it would wait for its
// own step's end. The interactive step holds nothing that anybody would wait for.
func withinStep(job *uint32) bool {
	id := os.Getenv("SLURM_STEP_ID")
	return job != nil && id != "" && id != fmt.Sprint(step.InteractiveStep) && os.Getenv("SLURM_JOB_ID") == fmt.Sprint(*job)
}

// outsideStep is the environment of a command of a step as a new job has it, which has
// nothing to do with that step: neither its number nor its binding.
func outsideStep(env []string) []string {
	of := []string{"SLURM_STEP_ID", "SLURM_STEPID"}
	if id, _ := options.LookupIn(env, of[0]); id != "" {
		of = append(of, options.BindingVariables("SLURM_")...)
	}
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(of, name)
	})
}
