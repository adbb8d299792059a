package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"stepd/api"
	"stepd/step"
)

// inTurn asks for a step, and again where it has to wait for its share of a job: then one
// line says what for.
func (o *runOptions) inTurn(ask func(wait bool) (*api.RunReply, error)) (*api.RunReply, error) {
	reply, err := ask(false)
	what := waitsFor(err)
	if what == "" {
		return reply, err
	}
	if !o.quiet {
		say("waiting for %s", what)
	}
	for gone := (time.Time{}); ; {
		began := time.Now()
		reply, err := ask(true)
		if status.Code(err) != codes.Unavailable {
			return reply, err
		}
		// noded is gone; the job, and the steps that are waited for, go on.
		if gone.IsZero() || time.Since(began) > time.Second {
			gone = began
		}
		if time.Since(gone) > reconnectFor {
			return nil, err
		}
		// Nothing tells when a socket is served again but trying it.
		time.Sleep(200 * time.Millisecond)
	}
}

// waitsFor is what a request that was refused could wait for, "" if it could not.
func waitsFor(err error) string {
	if status.Code(err) != codes.ResourceExhausted {
		return ""
	}
	for _, d := range status.Convert(err).Details() {
		if w, ok := d.(*api.Waits); ok {
			return w.GetWhat()
		}
	}
	return ""
}

// withinStep tells whether this is a command of a step of the job: it would wait for its
// own step's end. The interactive step holds nothing that anybody would wait for.
func withinStep(job *uint32) bool {
	id := os.Getenv("SLURM_STEP_ID")
	return job != nil && id != "" && id != fmt.Sprint(step.InteractiveStep) && os.Getenv("SLURM_JOB_ID") == fmt.Sprint(*job)
}

// outsideStep is the environment of a command of a step as a new job has it, which has
// nothing to do with that step: neither its number nor its binding.
func outsideStep(env []string) []string {
	of := []string{"SLURM_STEP_ID", "SLURM_STEPID"}
	if id, _ := lookupIn(env, of[0]); id != "" {
		for _, e := range bindEnv {
			of = append(of, "SLURM_"+e.name)
		}
	}
	return slices.DeleteFunc(slices.Clone(env), func(e string) bool {
		name, _, _ := strings.Cut(e, "=")
		return slices.Contains(of, name)
	})
}
