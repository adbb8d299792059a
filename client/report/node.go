package report

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
)

// NodeCommand is the verb node.
func NodeCommand(d *client.Dialer) *cobra.Command {
	c := &cobra.Command{
		Use: "node", Short: "the node itself: status, drain, resume",
		RunE: func(*cobra.Command, []string) error { return errors.New("node: want status, drain or resume") },
	}
	var asJSON bool
	st := &cobra.Command{
		Use: "status", Short: "show the node", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			doc, err := client.Ask(d, func(ctx context.Context, noded *api.Client) (json.RawMessage, error) { return noded.Node(ctx) })
			switch {
			case err != nil:
				return err
			case asJSON:
				return client.PrintJSON("node", doc)
			}
			return showNode(os.Stdout, doc)
		},
	}
	st.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	drain := &cobra.Command{
		Use: "drain REASON", Short: "take no more steps (root)", Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return d.Call(func(ctx context.Context, noded *api.Client) error { return noded.Drain(ctx, strings.Join(args, " ")) })
		},
	}
	resume := &cobra.Command{
		Use: "resume", Short: "take steps again (root)", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return d.Call(func(ctx context.Context, noded *api.Client) error { return noded.Resume(ctx) })
		},
	}
	c.AddCommand(st, drain, resume)
	return c
}
