package report

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"stepd/api"
	"stepd/client"
	"stepd/client/plugins"
	"stepd/internal/printable"
	"stepd/step"
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

// showNode prints the node document for people.
func showNode(w io.Writer, doc []byte) error {
	var n api.Node
	if err := json.Unmarshal(doc, &n); err != nil {
		return fmt.Errorf("cannot parse noded's document: %w", err)
	}
	b := bufio.NewWriter(w)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(b, "  %-10s "+format+"\n", append([]any{name}, args...)...)
	}
	fmt.Fprintf(b, "node %s  %s\n", n.Name, n.State)
	if n.Reason != "" {
		row("reason", "%s", printable.Line(n.Reason, 400))
	}
	row("cpus", "%d, %d free", n.CPUs, n.FreeCPUs)
	row("memory", "%d MB", n.MemoryBytes>>20)
	if n.UsedMB > 0 {
		row("given", "%d MB", n.UsedMB)
	}
	for _, g := range n.Gres {
		used := ""
		if g.UsedIndex != "" {
			used = " (" + g.UsedIndex + ")"
		}
		row("gres", "%s: %d of %d used%s", printable.Line(strings.TrimSuffix(g.Name+":"+g.Type, ":"), 200), g.Used, g.Count, used)
	}
	row("proctrack", "%s", n.Proctrack)
	if n.Container != "" && n.Container != "none" {
		row("container", "%s", n.Container)
	}
	writeJobs(row, n.Jobs)
	for _, u := range n.Unkillable {
		row("unkillable", "%s (since %s)", printable.Line(u.Text, 400), u.Since.Format(time.RFC3339))
	}
	for _, f := range n.Fallbacks {
		row("fallback", "%s: %s", f.What, f.Why)
	}
	writePlugins(row, n.Plugins)
	files := "?"
	if n.Daemon.OpenFiles != nil {
		files = fmt.Sprint(*n.Daemon.OpenFiles)
	}
	if n.Daemon.PID != 0 { // a noded that reports it
		row("noded", "pid %d, %d MB of heap, %s files open", n.Daemon.PID, n.Daemon.HeapBytes>>20, files)
	}
	return b.Flush()
}

// writeRow prints a line: what it is about, and the words of a format.
type writeRow func(name, format string, args ...any)

// jobsShown bounds the jobs that are listed: ps has them all.
const jobsShown = 20

// writeJobs prints a line for each job, and how many more there are.
func writeJobs(row writeRow, jobs []api.NodeJob) {
	row("jobs", "%d", len(jobs))
	for i, j := range jobs {
		if i == jobsShown {
			row("job", "and %d more", len(jobs)-jobsShown)
			return
		}
		words := []string{fmt.Sprint(j.ID), printable.Line(j.User, 40), printable.Line(j.Name, 40), "cpus " + j.CPUs}
		if j.MemoryMB != nil {
			words = append(words, fmt.Sprintf("%d MB", *j.MemoryMB))
		}
		if j.Gres != "" {
			words = append(words, printable.Line(j.Gres, 100))
		}
		words = append(words, fmt.Sprintf("%d steps", len(j.Steps)))
		if len(j.Steps) == 1 {
			words[len(words)-1] = "step " + step.ID{Job: j.ID, Step: j.Steps[0]}.Name()
		}
		if j.Suspended != nil {
			words = append(words, "suspended since "+j.Suspended.Format(time.RFC3339))
		}
		row("job", "%s", strings.Join(words, "  "))
	}
}

// writePlugins prints the plugin stack, with the problem of each line.
func writePlugins(row writeRow, plugged []api.NodePlugin) {
	for _, p := range plugged {
		if p.Path == p.File { // a line that names no plugin
			row("plugstack", "%s %s: %s", at(p.File, p.Line), p.State, printable.Line(p.Problem, 2000))
			continue
		}
		words := []string{plugins.RequiredWord(p.Required), printable.Line(p.Path, 400), p.State}
		if p.Release != "" {
			words = append(words, p.Release)
		}
		if p.Problem != "" {
			words = append(words, printable.Line(p.Problem, 2000))
		}
		row("plugin", "%s", strings.Join(words, "  "))
	}
}
