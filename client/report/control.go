package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/client/options"
	"stepd/client/plugins"
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
				return tellNotes(noded.Signal(ctx, &api.SignalRequest{StepRef: ref, Signal: sig, Scope: scope}))
			})
		}),
	}
	c.Flags().StringVarP(&name, "signal", "s", name, "signal by name or number")
	c.Flags().StringVar(&scope, "scope", scope, "leader: the first task's process; tasks: each task's process; cgroup: every process of the step")
	return c
}

// SuspendCommand is the verb suspend.
func SuspendCommand(d *client.Dialer) *cobra.Command {
	return forEach(d, "suspend", "stop the tasks of steps, or of jobs, which then take no further steps", (*api.Client).Suspend)
}

// ResumeCommand is the verb resume.
func ResumeCommand(d *client.Dialer) *cobra.Command {
	return forEach(d, "resume", "let suspended steps or jobs go on", (*api.Client).Unsuspend)
}

// CancelCommand is the verb cancel.
func CancelCommand(d *client.Dialer) *cobra.Command {
	return forEach(d, "cancel", "end steps", func(noded *api.Client, ctx context.Context, ref api.StepRef) error {
		return tellNotes(noded.Cancel(ctx, &api.CancelRequest{StepRef: ref}))
	})
}

// tellNotes prints what noded says of a request that ends steps.
func tellNotes(r *api.EndReply, err error) error {
	if r != nil {
		for _, note := range r.Notes {
			terminal.Say("%s", note)
		}
	}
	return err
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

// adoptDoc is what `adopt --json` prints.
type adoptDoc struct {
	PID    int    `json:"pid"`
	JobID  uint32 `json:"job_id"`
	StepID uint32 `json:"step_id"`
	ID     string `json:"id"`
	Cgroup string `json:"cgroup"`
	// Namespaces are paths for setns(2), by the names of /proc/PID/ns.
	Namespaces map[string]string `json:"namespaces"`
}

// adoption is what the flags of adopt say.
type adoption struct {
	job         uint32
	user        string
	pam, asJSON bool
	pid         int
	passed      bool // --pam: nothing is to be done
}

// AdoptCommand is the verb adopt.
func AdoptCommand(d *client.Dialer) *cobra.Command {
	var a adoption
	c := &cobra.Command{
		Use: "adopt [--job N] [--uid USER] PID | --pam", Short: "put a process into the extern step of a job (root)",
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := a.read(args); err != nil || a.passed {
				return err
			}
			return d.Call(func(ctx context.Context, noded *api.Client) error { return a.ask(ctx, noded) })
		},
	}
	c.Flags().Uint32Var(&a.job, "job", 0, "the job, and not the newest of the user's")
	c.Flags().StringVar(&a.user, "uid", "", "whose job it is to be (name or number): needed for a process of root's")
	c.Flags().BoolVar(&a.pam, "pam", false, "adopt the parent process, for $PAM_USER")
	c.Flags().BoolVar(&a.asJSON, "json", false, "one JSON document")
	return c
}

// read finds the process and its user.
func (a *adoption) read(args []string) (err error) {
	switch {
	case a.pam && len(args) > 0:
		return errors.New("--pam adopts the parent process: no PID is wanted")
	case a.pam:
		a.pid, a.user = os.Getppid(), cmp.Or(a.user, os.Getenv("PAM_USER"))
		if a.user == "" {
			return errors.New("--pam: PAM_USER is not set: this is for pam_exec(8)")
		}
		// No session ends a job, or needs one to end.
		a.passed = a.user == "root" || a.user == "0" || os.Getenv("PAM_TYPE") == "close_session"
		return nil
	case len(args) == 0:
		return errors.New("adopt: want the number of a process")
	}
	if a.pid, err = strconv.Atoi(args[0]); err != nil || a.pid < 1 || int64(a.pid) > 1<<31-1 {
		return fmt.Errorf("%q is not the number of a process", args[0])
	}
	return nil
}

func (a *adoption) ask(ctx context.Context, noded *api.Client) error {
	in := &api.AdoptRequest{PID: a.pid, JobID: a.job}
	if a.user != "" {
		uid, err := plugins.Lookup("user", a.user)
		if err != nil {
			return fmt.Errorf("--uid %q: %w", a.user, err)
		}
		in.UID = &uid
	}
	r, err := noded.Adopt(ctx, in)
	if a.pam && api.CodeOf(err) == api.NotFound {
		// To the user, since pam_exec shows standard output alone.
		fmt.Printf("Access denied: %s has no job on this node\n", a.user)
		return terminal.ExitError(1)
	}
	if err != nil {
		return err
	}
	if a.asJSON {
		return client.PrintJSON("adopted", adoptDoc{a.pid, r.JobID, r.StepID, r.ID, r.Cgroup, r.Namespaces})
	}
	return nil
}
