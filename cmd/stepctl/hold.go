package main

import (
	"context"

	"github.com/spf13/cobra"

	"stepd/api"
)

func holdCommand(d *dialer) *cobra.Command {
	return &cobra.Command{
		Use: "hold JOB...", Short: "keep batch jobs that wait from their start", Args: cobra.MinimumNArgs(1),
		Long: `Keep a batch job that waits, or those of an array that do, from its start until
stepctl release lets go of it, as batch --hold does from the beginning. What root holds,
only root lets go of.`,
		RunE: func(_ *cobra.Command, args []string) error { return d.holdJobs(args, false) },
	}
}

func releaseCommand(d *dialer) *cobra.Command {
	return &cobra.Command{
		Use: "release JOB...", Short: "let go of batch jobs that are held", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return d.holdJobs(args, true) },
	}
}

func (d *dialer) holdJobs(args []string, release bool) error {
	return d.eachRef(args, func(ctx context.Context, client api.NodeClient, ref *api.StepRef) error {
		_, err := client.Hold(ctx, &api.HoldRequest{Job: ref, Release: release})
		return err
	})
}
