package slurmstepd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"stepd/step"
)

// survivors are what a step has left that SIGKILL does not end.
type survivors struct {
	program chan struct{} // closed when UnkillableStepProgram has ended
}

// held drains the node of a step whose processes outlive UnkillableStepTimeout, and runs the
// site's program. It returns nil where none does.
func (d *daemon) held(ctx context.Context, rec *step.Record) *survivors {
	if rec.SurvivorsTotal == 0 {
		return nil
	}
	s := &survivors{program: make(chan struct{})}
	go func() {
		defer close(s.program)
		if program := d.conf.UnkillableStepProgram; program != "" {
			if err := d.runUnkillable(ctx, program); err != nil {
				d.log.Errorf("UnkillableStepProgram %q: %v", program, err)
			}
		}
	}()
	d.peers.drain(ctx, heldReason(rec))
	return s
}

// commMax bounds a process's name in the node's reason, in bytes.
const commMax = 16

// heldReason names the step, and one of the processes: slurmd's log has all.
func heldReason(rec *step.Record) string {
	text := fmt.Sprintf("step %s", rec.ID.Name())
	if len(rec.Survivors) == 0 {
		return text
	}
	p := rec.Survivors[0]
	text += fmt.Sprintf(": pid %d %.*q", p.PID, commMax, p.Comm)
	if p.State != "" {
		text += " in state " + p.State
	}
	if more := rec.SurvivorsTotal - 1; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return text
}

// unkillableMax bounds UnkillableStepProgram, as in Slurm.
const unkillableMax = 5 * time.Minute

// runUnkillable runs UnkillableStepProgram as root, in slurmd's environment.
func (d *daemon) runUnkillable(ctx context.Context, program string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, unkillableMax, fmt.Errorf("not ended within %v", unkillableMax))
	defer cancel()
	begun := time.Now()
	id := d.id()
	cmd := exec.CommandContext(ctx, program)
	cmd.Dir = filepath.Dir(d.stream.Conf.LogFile)
	cmd.Env = append(cmd.Environ(),
		fmt.Sprintf("SLURM_JOB_ID=%d", id.Job), fmt.Sprintf("SLURM_JOBID=%d", id.Job),
		fmt.Sprintf("SLURM_STEP_ID=%d", id.Step), fmt.Sprintf("SLURM_STEPID=%d", id.Step))
	err := cmd.Run()
	if errors.Is(err, unix.ECHILD) { // the step's reaper had its status first
		err = nil
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		d.log.Infof("UnkillableStepProgram took %v", time.Since(begun).Round(time.Millisecond))
	}
	return err
}

// wait returns when the processes have ended at last, however late, and the program: until then
// slurmd must not take the step for ended, nor run the Epilog.
func (s *survivors) wait(ctx context.Context, d *daemon) {
	if s == nil {
		return
	}
	if d.place.Lock() == nil { // without cgroups nothing tells
		<-s.program
		return
	}
	err := d.place.Remove(ctx)
	<-s.program
	if err != nil {
		d.log.Error(err)
		return
	}
	d.log.Info("the processes that could not be killed have ended")
}
