package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/internal/printable"
)

// nodeDoc is the node document of `node status`.
type nodeDoc struct {
	Name        string `json:"name"`
	State       string `json:"state"`
	Reason      string `json:"reason"`
	CPUs        int    `json:"cpus"`
	MemoryBytes uint64 `json:"memory_bytes"`
	UsedMB      uint64 `json:"memory_used_mb"`
	Proctrack   string `json:"proctrack"`
	Gres        []struct {
		Name      string `json:"name"`
		Type      string `json:"type"`
		Count     uint64 `json:"count"`
		Used      uint64 `json:"used"`
		UsedIndex string `json:"used_index"`
	} `json:"gres"`
	Fallbacks []struct {
		What string `json:"what"`
		Why  string `json:"why"`
	} `json:"fallbacks"`
	Jobs       []json.RawMessage `json:"jobs"`
	Unkillable []struct {
		Since time.Time `json:"since"`
		Text  string    `json:"text"`
	} `json:"unkillable"`
	Plugins []struct {
		Path     string `json:"path"`
		File     string `json:"file"`
		Line     int    `json:"line"`
		Required bool   `json:"required"`
		State    string `json:"state"`
		Problem  string `json:"problem"`
		Release  string `json:"release"`
	} `json:"plugins"`
}

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
				return showNode(r.Node)
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

func showNode(doc []byte) error {
	var n nodeDoc
	if err := json.Unmarshal(doc, &n); err != nil {
		return fmt.Errorf("cannot parse noded's document: %w", err)
	}
	fmt.Printf("node %s  %s\n", n.Name, n.State)
	if n.Reason != "" {
		fmt.Printf("  reason     %s\n", printable.Line(n.Reason, 400))
	}
	fmt.Printf("  cpus       %d\n  memory     %d MB\n  proctrack  %s\n  jobs       %d\n", n.CPUs, n.MemoryBytes>>20, n.Proctrack, len(n.Jobs))
	for _, u := range n.Unkillable {
		fmt.Printf("  unkillable %s (since %s)\n", printable.Line(u.Text, 400), u.Since.Format(time.RFC3339))
	}
	if n.UsedMB > 0 {
		fmt.Printf("  given      %d MB\n", n.UsedMB)
	}
	for _, g := range n.Gres {
		name := g.Name
		if g.Type != "" {
			name += ":" + g.Type
		}
		used := ""
		if g.UsedIndex != "" {
			used = " (" + g.UsedIndex + ")"
		}
		fmt.Printf("  gres       %s: %d of %d used%s\n", printable.Line(name, 200), g.Used, g.Count, used)
	}
	for _, f := range n.Fallbacks {
		fmt.Printf("  fallback   %s: %s\n", f.What, f.Why)
	}
	for _, p := range n.Plugins {
		if p.Path == p.File { // a line that names no plugin
			fmt.Printf("  plugstack  %s %s: %s\n", at(p.File, p.Line), p.State, printable.Line(p.Problem, 2000))
			continue
		}
		words := []string{requiredWord(p.Required), printable.Line(p.Path, 400), p.State}
		if p.Release != "" {
			words = append(words, p.Release)
		}
		if p.Problem != "" {
			words = append(words, printable.Line(p.Problem, 2000))
		}
		fmt.Printf("  plugin     %s\n", strings.Join(words, "  "))
	}
	return nil
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
