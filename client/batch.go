package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/spank"
	"stepd/step"
)

// BatchCommand is the verb batch.
func BatchCommand(d *Dialer) *cobra.Command {
	o := &options.Batch{}
	c := &cobra.Command{
		Use:         "batch [options] [SCRIPT [ARG...]]",
		Short:       "run a script as a job of its own, and do not wait for it",
		Long:        "batch runs SCRIPT (default: what stdin holds) as a job of its own. Lines of it that begin with\n#SBATCH or #STEP, before its first command, are options; the command line's overrule them.",
		Annotations: map[string]string{UsesPlugins: spank.ContextAllocator.String()},
		RunE: func(c *cobra.Command, argv []string) error {
			client := d.Client()
			script, argv, err := o.Script(argv)
			if err != nil {
				return err
			}
			if err := options.FromEnv(c.Flags(), options.BatchJob); err != nil {
				return err
			}
			if o.Lines, err = options.FromScript(c, d.Plugins, argv[0], script); err != nil {
				return err
			}
			code, err := batch(client, o, d.Plugins, script, argv)
			err = o.Lines.Locate(err)
			return terminal.Exit(code, err)
		},
	}
	o.Bind(c)
	c.Flags().StringVar(&o.Wrap, "wrap", "", "a command of the shell instead of a script")
	return c
}

// batch submits the script.
func batch(client *api.Client, o *options.Batch, p *plugins.Host, script []byte, argv []string) (int, error) {
	p.PostOptEnv = []string{"SLURM_JOB_NAME=" + cmp.Or(o.Name, options.NameOf(argv[0]))}
	return p.Around(func() (int, error) { return submit(client, o, p, script, argv) })
}

func submit(client *api.Client, o *options.Batch, p *plugins.Host, script []byte, argv []string) (int, error) {
	p.Env = outsideStep(p.Env)
	req, err := o.Request(options.BatchJob, append([]string{filepath.Base(argv[0])}, argv[1:]...), p)
	if err != nil {
		return 0, err
	}
	// Measured: a batch step has the options by its environment alone.
	req.Script, req.SpankOptions = script, nil
	p.WarnTooLong() // stepd makes the script's environment of JobControl
	p.ExitEnv = append(p.JobEnv(), "SLURM_JOB_NAME="+req.Name, "SLURM_SUBMIT_DIR="+req.Cwd, "SLURM_SUBMIT_HOST="+req.SubmitHost)
	own, err := o.ClientEnv(p, int(req.Umask))
	if err != nil {
		return 0, err
	}
	p.ExitEnv = append(p.ExitEnv, slices.DeleteFunc(own, func(e string) bool { return strings.HasPrefix(e, "SRUN_") })...)
	ctx := context.Background()
	reply, err := admitted(&o.Run, req, func(in *api.RunRequest) (*api.RunReply, error) {
		return client.Run(ctx, in)
	})
	if err != nil {
		return 0, err
	}
	if o.Parsable {
		fmt.Println(reply.JobID)
	} else {
		fmt.Printf("Submitted batch job %d\n", reply.JobID)
	}
	if !o.Wait {
		return 0, nil
	}
	return waitForJob(ctx, client, step.ID{Job: reply.JobID, Step: reply.StepID})
}

// waitForJob waits for the end of a batch job, and returns its code; 1 of one whose end is
// not known, which is printed. That noded stays away is an error.
func waitForJob(ctx context.Context, client waiter, id step.ID) (int, error) {
	rec, err := awaitRecord(ctx, client, id, sayGone)
	switch {
	case errors.Is(err, errNotBack):
		return 0, err
	case err != nil:
		terminal.Say("error: batch job %d: its exit code is not known: %s", id.Job, err)
		return 1, nil
	case rec.ExitCode == nil:
		terminal.Say("error: batch job %d: %s, and its exit code is not known: %s", id.Job, rec.State, rec.Reason)
		return 1, nil
	case rec.State != step.Completed && rec.Reason != "":
		terminal.Say("error: batch job %d: %s: %s", id.Job, rec.State, rec.Reason)
	}
	return *rec.ExitCode, nil
}
