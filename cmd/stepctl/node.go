package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/internal/printable"
)

func nodeCommand(d *dialer) *cobra.Command {
	c := &cobra.Command{
		Use: "node", Short: "the node itself: status, drain, resume",
		RunE: func(*cobra.Command, []string) error { return errors.New("node: want status, drain or resume") },
	}
	var asJSON bool
	st := &cobra.Command{
		Use: "status", Short: "show the node", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return d.call(func(ctx context.Context, client *api.Client) error {
				doc, err := client.Node(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON("node", doc)
				}
				return showNode(os.Stdout, doc)
			})
		},
	}
	st.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	drain := &cobra.Command{
		Use: "drain REASON", Short: "take no more steps (root)", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return d.call(func(ctx context.Context, client *api.Client) error {
				return client.Drain(ctx, strings.Join(args, " "))
			})
		},
	}
	resume := &cobra.Command{
		Use: "resume", Short: "take steps again (root)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return d.call(func(ctx context.Context, client *api.Client) error {
				return client.Resume(ctx)
			})
		},
	}
	c.AddCommand(st, drain, resume)
	return c
}

// at is "FILE:LINE", or the file as a whole.
func at(file string, line int) string {
	if line == 0 {
		return printable.Line(file, 400)
	}
	return fmt.Sprintf("%s:%d", printable.Line(file, 400), line)
}

// requiredWord is plugstack.conf's own for a plugin.
func requiredWord(required bool) string {
	if required {
		return "required"
	}
	return "optional"
}
