package main

import (
	"context"
	"encoding/json"
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
			return d.call(func(ctx context.Context, client api.NodeClient) error {
				r, err := client.NodeStatus(ctx, &api.Empty{})
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON("node", json.RawMessage(r.Node))
				}
				return showNode(os.Stdout, r.Node)
			})
		},
	}
	st.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	drain := &cobra.Command{
		Use: "drain REASON", Short: "take no more steps (root)", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return d.call(func(ctx context.Context, client api.NodeClient) error {
				_, err := client.Drain(ctx, &api.DrainRequest{Reason: strings.Join(args, " ")})
				return err
			})
		},
	}
	resume := &cobra.Command{
		Use: "resume", Short: "take steps again (root)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return d.call(func(ctx context.Context, client api.NodeClient) error {
				_, err := client.Resume(ctx, &api.Empty{})
				return err
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
