package report

import (
	"context"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/client/options"
	"stepd/client/terminal"
	"stepd/step"
)

// SignalCommand is the verb signal.
func SignalCommand(d *client.Dialer) *cobra.Command {
	name, scope := "TERM", step.ScopeTasks
	c := &cobra.Command{
		Use: "signal [-s SIG] JOB[.STEP]", Short: "send a signal to the tasks", Args: cobra.ExactArgs(1),
		RunE: onRef(func(ref api.StepRef) error {
			sig, err := options.ParseSignal(name)
			if err != nil {
				return err
			}
			return d.Call(func(ctx context.Context, noded *api.Client) error {
				return noded.Signal(ctx, &api.SignalRequest{StepRef: ref, Signal: sig, Scope: scope})
			})
		}),
	}
	c.Flags().StringVarP(&name, "signal", "s", name, "signal by name or number")
	c.Flags().StringVar(&scope, "scope", scope, "leader: the first task's process; tasks: each task's process; cgroup: every process of the step")
	return c
}

// SuspendCommand is the verb suspend.
func SuspendCommand(d *client.Dialer) *cobra.Command {
	c := forEach(d, "suspend", "stop the tasks of steps, or of jobs, which then take no further steps", (*api.Client).Suspend)
	c.Long = `Stop the tasks of a step, or of all steps of a job: SIGTSTP, two seconds for
programs that want to prepare, then the freezer, which they cannot see or undo.
A suspended job takes no further steps. The command returns when all stand still.
The state stays RUNNING, and "suspended" in --json tells since when; the time does
not count as run. What root has suspended, only root resumes. cancel ends a
suspended step by SIGKILL at once; other signals are refused.`
	return c
}

// ResumeCommand is the verb resume.
func ResumeCommand(d *client.Dialer) *cobra.Command {
	return forEach(d, "resume", "let suspended steps or jobs go on", (*api.Client).Unsuspend)
}

// CancelCommand is the verb cancel.
func CancelCommand(d *client.Dialer) *cobra.Command {
	return forEach(d, "cancel", "end steps", func(noded *api.Client, ctx context.Context, ref api.StepRef) error {
		return noded.Cancel(ctx, &api.CancelRequest{StepRef: ref})
	})
}

// forEach is a verb that acts on every JOB[.STEP] of its arguments: one that fails does not
// keep the others from being tried.
func forEach(d *client.Dialer, verb, short string, act func(*api.Client, context.Context, api.StepRef) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " JOB[.STEP]...", Short: short, Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			code := 0
			for _, a := range args {
				ref, err := client.ParseRef(a)
				if err == nil {
					err = d.Call(func(ctx context.Context, noded *api.Client) error { return act(noded, ctx, ref) })
				}
				if err != nil {
					terminal.Say("error: %s", err)
					code = 1
				}
			}
			return terminal.Exit(code, nil)
		},
	}
}

// onRef is what a verb runs that acts on the one JOB[.STEP] of its arguments.
func onRef(act func(api.StepRef) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		ref, err := client.ParseRef(args[0])
		if err != nil {
			return err
		}
		return act(ref)
	}
}
