package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/spank"
	"stepd/step"
)

func batchCommand(d *dialer) *cobra.Command {
	o := &batchOptions{}
	c := &cobra.Command{
		Use:         "batch [options] [SCRIPT [ARG...]]",
		Short:       "run a script as a job of its own, and do not wait for it",
		Long:        "batch runs SCRIPT (default: what stdin holds) as a job of its own. Lines of it that begin with\n#SBATCH or #STEP, before its first command, are options; the command line's overrule them.",
		Annotations: map[string]string{usesPlugins: spank.ContextAllocator.String()},
		RunE: func(c *cobra.Command, argv []string) error {
			client := d.client()
			script, argv, err := o.script(argv)
			if err != nil {
				return err
			}
			if err := refuseLeft("SBATCH_"); err != nil {
				return err
			}
			if err := bindingFromEnv(c.Flags(), "SBATCH_"); err != nil {
				return err
			}
			if err := optionsFromEnv(c.Flags(), batchEnvOptions); err != nil {
				return err
			}
			if o.lines, err = scriptOptions(c, d.plugins, argv[0], script); err != nil {
				return err
			}
			code, err := batch(client, o, d.plugins, script, argv)
			err = o.lines.place(err)
			if err == nil && code != 0 {
				return exitError(code)
			}
			return err
		},
	}
	o.bind(c)
	c.Flags().StringVar(&o.wrap, "wrap", "", "a command of the shell instead of a script")
	return c
}

// batch submits the script.
func batch(client *api.Client, o *batchOptions, p *plugins, script []byte, argv []string) (int, error) {
	p.postOptEnv = []string{"SLURM_JOB_NAME=" + cmp.Or(o.name, nameOf(argv[0]))}
	if err := p.take(); err != nil {
		return 0, err
	}
	code, err := submit(client, o, p, script, argv)
	p.exit()
	return p.strictCode(code), err
}

func submit(client *api.Client, o *batchOptions, p *plugins, script []byte, argv []string) (int, error) {
	p.env = outsideStep(p.env)
	req, err := o.request(batchJob, append([]string{filepath.Base(argv[0])}, argv[1:]...), p)
	if err != nil {
		return 0, err
	}
	// Measured: a batch step has the options by its environment alone.
	req.Script, req.SpankOptions = script, nil
	p.tellTooLong() // stepd makes the script's environment of JobControl
	p.exitEnv = append(p.jobEnv(), "SLURM_JOB_NAME="+req.Name, "SLURM_SUBMIT_DIR="+req.Cwd, "SLURM_SUBMIT_HOST="+req.SubmitHost)
	own, err := o.clientEnv(p, int(req.Umask))
	if err != nil {
		return 0, err
	}
	for _, e := range own {
		if !strings.HasPrefix(e, "SRUN_") {
			p.exitEnv = append(p.exitEnv, e)
		}
	}
	ctx := context.Background()
	reply, err := inTurn(&o.runOptions, req, func(in *api.RunRequest) (*api.RunReply, error) {
		return client.Run(ctx, in)
	})
	if err != nil {
		return 0, err
	}
	if o.parsable {
		fmt.Println(reply.JobID)
	} else {
		fmt.Printf("Submitted batch job %d\n", reply.JobID)
	}
	if !o.wait {
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
		say("error: batch job %d: its exit code is not known: %s", id.Job, err)
		return 1, nil
	case rec.ExitCode == nil:
		say("error: batch job %d: %s, and its exit code is not known: %s", id.Job, rec.State, rec.Reason)
		return 1, nil
	case rec.State != step.Completed && rec.Reason != "":
		say("error: batch job %d: %s: %s", id.Job, rec.State, rec.Reason)
	}
	return *rec.ExitCode, nil
}
