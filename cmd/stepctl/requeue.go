package main

import (
	"context"

	"github.com/spf13/cobra"

	"stepd/api"
)

func requeueCommand(d *dialer) *cobra.Command {
	hold := false
	cmd := &cobra.Command{
		Use: "requeue JOB...", Short: "end batch jobs and run them again", Args: cobra.MinimumNArgs(1),
		Long: `End a batch job, or all jobs of an array, and put it back into the queue under its number.
Its steps are cancelled, and its epilog is run. SLURM_RESTART_COUNT counts its further runs. Jobs
that were submitted with --no-requeue are refused. With --hold it waits, held, until
stepctl release.`,
		RunE: func(_ *cobra.Command, args []string) error {
			return d.eachRef(args, func(ctx context.Context, client api.NodeClient, ref *api.StepRef) error {
				if hold { // a noded that does not know it refuses it: the job has been started
					_, err := client.Hold(ctx, &api.HoldRequest{Job: ref, Requeue: true})
					return err
				}
				_, err := client.Requeue(ctx, ref)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&hold, "hold", false, "keep them from their next start until stepctl release (scontrol requeuehold)")
	return cmd
}
