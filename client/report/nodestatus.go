package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"stepd/api"
	"stepd/client/plugins"
	"stepd/internal/printable"
	"stepd/step"
)

// showNode prints the node document for people.
func showNode(w io.Writer, doc []byte) error {
	var n api.Node
	if err := json.Unmarshal(doc, &n); err != nil {
		return fmt.Errorf("cannot parse noded's document: %w", err)
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "node %s  %s\n", n.Name, n.State)
	if n.Reason != "" {
		fmt.Fprintf(b, "  reason     %s\n", printable.Line(n.Reason, 400))
	}
	fmt.Fprintf(b, "  cpus       %d, %d free\n  memory     %d MB\n", n.CPUs, n.FreeCPUs, n.MemoryBytes>>20)
	writeResources(b, &n)
	fmt.Fprintf(b, "  proctrack  %s\n", n.Proctrack)
	if n.Container != "" && n.Container != "none" {
		fmt.Fprintf(b, "  container  %s\n", n.Container)
	}
	writeJobs(b, n.Jobs)
	for _, u := range n.Unkillable {
		fmt.Fprintf(b, "  unkillable %s (since %s)\n", printable.Line(u.Text, 400), u.Since.Format(time.RFC3339))
	}
	for _, f := range n.Fallbacks {
		fmt.Fprintf(b, "  fallback   %s: %s\n", f.What, f.Why)
	}
	writePlugins(b, n.Plugins)
	files := "?"
	if n.Daemon.OpenFiles != nil {
		files = fmt.Sprint(*n.Daemon.OpenFiles)
	}
	if n.Daemon.PID != 0 { // a noded that reports it
		fmt.Fprintf(b, "  noded      pid %d, %d MB of heap, %s files open\n", n.Daemon.PID, n.Daemon.HeapBytes>>20, files)
	}
	return b.Flush()
}

// writeResources prints the memory that jobs were given, and the generic resources.
func writeResources(b io.Writer, n *api.Node) {
	if n.UsedMB > 0 {
		fmt.Fprintf(b, "  given      %d MB\n", n.UsedMB)
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
		fmt.Fprintf(b, "  gres       %s: %d of %d used%s\n", printable.Line(name, 200), g.Used, g.Count, used)
	}
}

// jobsShown bounds the jobs that are listed: ps has them all.
const jobsShown = 20

// writeJobs prints a line for each job, and how many more there are.
func writeJobs(b io.Writer, jobs []api.NodeJob) {
	fmt.Fprintf(b, "  jobs       %d\n", len(jobs))
	for i, j := range jobs {
		if i == jobsShown {
			fmt.Fprintf(b, "  job        and %d more\n", len(jobs)-jobsShown)
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
		fmt.Fprintf(b, "  job        %s\n", strings.Join(words, "  "))
	}
}

// writePlugins prints the plugin stack, with the problem of each line.
func writePlugins(b io.Writer, plugged []api.NodePlugin) {
	for _, p := range plugged {
		if p.Path == p.File { // a line that names no plugin
			fmt.Fprintf(b, "  plugstack  %s %s: %s\n", at(p.File, p.Line), p.State, printable.Line(p.Problem, 2000))
			continue
		}
		words := []string{plugins.RequiredWord(p.Required), printable.Line(p.Path, 400), p.State}
		if p.Release != "" {
			words = append(words, p.Release)
		}
		if p.Problem != "" {
			words = append(words, printable.Line(p.Problem, 2000))
		}
		fmt.Fprintf(b, "  plugin     %s\n", strings.Join(words, "  "))
	}
}
