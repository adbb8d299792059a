package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"

	"stepd/api"
	"stepd/step"
)

// dryRun prints what the request would come to. Plugins on this side are not
// asked for more than their options.
func dryRun(client api.NodeClient, o *runOptions, req *step.Request) error {
	req.Pack()
	doc, err := json.Marshal(req)
	if err != nil {
		return fmt.Errorf("cannot encode the request: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	r, err := client.DryRun(ctx, &api.RunRequest{Request: doc})
	if err != nil {
		return err
	}
	if o.json {
		return printJSON("plan", json.RawMessage(r.Plan))
	}
	var d step.DryRun
	if err := json.Unmarshal(r.Plan, &d); err != nil {
		return fmt.Errorf("cannot parse noded's answer: %w", err)
	}
	return showDryRun(os.Stdout, &d)
}

func showDryRun(to io.Writer, d *step.DryRun) error {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "step %s on %s, nothing is started\n", d.ID, d.Node)
	var words []string
	for _, a := range d.Argv {
		words = append(words, fmt.Sprintf("%q", a))
	}
	row("command", "%s", strings.Join(words, " "))
	row("in", "%s", clean(d.Cwd, step.PathMax))
	row("user", "%s (%d)", clean(d.User, step.NameMax), d.UID)
	row("tasks", "%d", d.NTasks)
	if len(d.Parts) == 0 {
		showPlace(row, d)
	}
	for i := range d.Parts {
		p := &d.Parts[i]
		fmt.Fprintf(&b, "node %s\n", p.Node)
		row("tasks", "%d, ranks %s", p.NTasks, p.Ranks)
		showPlace(row, p)
	}
	_, err := io.WriteString(to, b.String())
	return err
}

// showPlace is what the step would have and be on one node.
func showPlace(row func(name, format string, args ...any), d *step.DryRun) {
	row("cpus", "%s", d.CPUs)
	if d.MemoryMB != nil {
		row("memory", "%s", step.FormatMB(*d.MemoryMB))
	}
	if len(d.Gres) > 0 {
		row("gres", "%s", step.FormatAllocs(d.Gres))
	}
	for _, e := range d.GresEnv {
		row("env", "%s", clean(e, step.PathMax))
	}
	for _, line := range d.Binding {
		row("binding", "%s", clean(line, step.PathMax))
	}
	for _, m := range d.Memory {
		row("limit", "%s", limitWords(m))
	}
	if d.OOMGroup != step.OOMGroupNone {
		row("oom", "ends the whole %s", d.OOMGroup)
	}
	for _, w := range d.Writes {
		if len(w.Deny) > 0 {
			row("attach", "%s: %s", w.Path, w.Value)
			continue
		}
		row("write", "%s <- %s", w.Path, w.Value)
	}
	for _, n := range d.Notes {
		row("note", "%s", clean(n, 2000))
	}
}

func limitWords(m step.MemoryLevel) string {
	s := m.Level + " "
	if m.Bytes != nil {
		s += fmt.Sprintf("%d bytes", *m.Bytes)
	} else {
		s += "none"
	}
	if m.SwapBytes != nil {
		s += fmt.Sprintf(", swap %d bytes", *m.SwapBytes)
	}
	return s + " (" + m.Dir + ")"
}
