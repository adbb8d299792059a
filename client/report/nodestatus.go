package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"stepd/client/plugins"
	"stepd/internal/printable"
	"stepd/step"
)

// Node is the node document of `node status`.
type Node struct {
	Name        string `json:"name"`
	State       string `json:"state"`
	Reason      string `json:"reason"`
	CPUs        int    `json:"cpus"`
	FreeCPUs    int    `json:"free_cpus"`
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
	Container string `json:"container"`
	Jobs      []struct {
		ID        uint32     `json:"job_id"`
		User      string     `json:"user"`
		Name      string     `json:"name"`
		CPUs      string     `json:"cpus"`
		Suspended *time.Time `json:"suspended"`
		MemoryMB  *uint64    `json:"memory_mb"`
		Gres      string     `json:"gres"`
		Steps     []uint32   `json:"steps"`
	} `json:"jobs"`
	Daemon struct {
		PID        int    `json:"pid"`
		Goroutines int    `json:"goroutines"`
		OpenFiles  *int   `json:"open_files"`
		HeapBytes  uint64 `json:"heap_bytes"`
	} `json:"daemon"`
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

// showNode prints the node document for people.
func showNode(w io.Writer, doc []byte) error {
	var n Node
	if err := json.Unmarshal(doc, &n); err != nil {
		return fmt.Errorf("cannot parse noded's document: %w", err)
	}
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "node %s  %s\n", n.Name, n.State)
	if n.Reason != "" {
		fmt.Fprintf(b, "  reason     %s\n", printable.Line(n.Reason, 400))
	}
	fmt.Fprintf(b, "  cpus       %d, %d free\n  memory     %d MB\n", n.CPUs, n.FreeCPUs, n.MemoryBytes>>20)
	n.resources(b)
	fmt.Fprintf(b, "  proctrack  %s\n", n.Proctrack)
	if n.Container != "" && n.Container != "none" {
		fmt.Fprintf(b, "  container  %s\n", n.Container)
	}
	n.jobs(b)
	for _, u := range n.Unkillable {
		fmt.Fprintf(b, "  unkillable %s (since %s)\n", printable.Line(u.Text, 400), u.Since.Format(time.RFC3339))
	}
	for _, f := range n.Fallbacks {
		fmt.Fprintf(b, "  fallback   %s: %s\n", f.What, f.Why)
	}
	n.plugins(b)
	files := "?"
	if n.Daemon.OpenFiles != nil {
		files = fmt.Sprint(*n.Daemon.OpenFiles)
	}
	if n.Daemon.PID != 0 { // a noded that reports it
		fmt.Fprintf(b, "  noded      pid %d, %d MB of heap, %s files open\n", n.Daemon.PID, n.Daemon.HeapBytes>>20, files)
	}
	return b.Flush()
}

// resources are the memory that is given, and the generic resources.
func (n *Node) resources(b io.Writer) {
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

func (n *Node) jobs(b io.Writer) {
	fmt.Fprintf(b, "  jobs       %d\n", len(n.Jobs))
	for i, j := range n.Jobs {
		if i == jobsShown {
			fmt.Fprintf(b, "  job        and %d more\n", len(n.Jobs)-jobsShown)
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

// plugins are the plugin stack and what is to be said of it.
func (n *Node) plugins(b io.Writer) {
	for _, p := range n.Plugins {
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
