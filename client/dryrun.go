package client

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"stepd/api"
	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/internal/printable"
	"stepd/srunopt"
	"stepd/step"
)

// dryRun prints what the request would come to. Plugins on this side are not
// asked for more than their options.
func dryRun(client *api.Client, o *options.Run, p *plugins.Host, req *step.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	r, err := client.DryRun(ctx, &api.RunRequest{Request: req})
	if err != nil {
		return err
	}
	d := r.Plan
	d.Environment = envChanges(os.Environ(), p.Env, req.Env, d.TaskEnv)
	p.DryRunOptions(d.Plugins)
	if o.JSON {
		return PrintJSON("plan", d)
	}
	return showDryRun(os.Stdout, d)
}

// envChanges are the differences between the caller's environment and a task's, in the
// order of their names, with who makes them: what plugins have left of the former is
// left, what the request has is asked.
func envChanges(caller, left, asked, task []string) []api.EnvChange {
	had, plugged, sent, has := variables(caller), variables(left), variables(asked), variables(task)
	out := []api.EnvChange{}
	for name, v := range has {
		old, before := had[name]
		if before && old == v {
			continue
		}
		c := api.EnvChange{Name: name, Change: "added", By: "stepd", Value: &v}
		if before {
			c.Change, c.Old = "changed", &old
		}
		was, plugin := plugged[name]
		value, ours := sent[name]
		switch {
		case plugin && was == v:
			c.By = "plugins"
		case ours && value == v:
			c.By = "stepctl"
		}
		out = append(out, c)
	}
	for name, old := range had {
		if _, kept := has[name]; kept || strings.HasPrefix(name, srunopt.LimitPrefix) {
			continue
		}
		c := api.EnvChange{Name: name, Change: "removed", By: "stepd", Old: &old}
		_, plugin := plugged[name]
		_, ours := sent[name]
		switch {
		case !plugin:
			c.By = "plugins"
		case !ours:
			c.By = "stepctl"
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b api.EnvChange) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// variables are an environment by name; the last one of a name counts.
func variables(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		m[name] = value
	}
	return m
}

func showDryRun(to io.Writer, d *api.DryRun) error {
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
	row("in", "%s", printable.Line(d.Cwd, srunopt.PathMax))
	row("user", "%s (%d)", printable.Line(d.User, srunopt.NameMax), d.UID)
	row("tasks", "%d", d.NTasks)
	showPlace(row, d)
	_, err := io.WriteString(to, b.String())
	return err
}

// showPlace is what the step would have and be on the node.
func showPlace(row func(name, format string, args ...any), d *api.DryRun) {
	row("cpus", "%s", d.CPUs)
	if d.MemoryMB != nil {
		row("memory", "%s", srunopt.FormatMB(*d.MemoryMB))
	}
	if len(d.Gres) > 0 {
		row("gres", "%s", srunopt.FormatAllocs(d.Gres))
	}
	for _, line := range d.Binding {
		row("binding", "%s", printable.Line(line, srunopt.PathMax))
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
	for _, l := range d.ResourceLimits {
		text := l.Name + " " + rlimitWord(l.Gets)
		if l.Lower {
			text += ": " + rlimitWord(l.Asked) + " was asked for, and the node's hard limit is lower"
		}
		row("rlimit", "%s", text)
	}
	for _, m := range d.Mounts {
		row("mount", "%s", printable.Line(m, srunopt.PathMax))
	}
	for _, p := range d.Plugins {
		words := append([]string{plugins.RequiredWord(p.Required), p.Path, p.State}, p.Options...)
		row("plugin", "%s", printable.Line(strings.Join(words, "  "), 2000))
	}
	showEnv(row, d)
	for _, n := range d.Notes {
		row("note", "%s", printable.Line(n, 2000))
	}
}

func showEnv(row func(name, format string, args ...any), d *api.DryRun) {
	for _, c := range d.Environment {
		text := "- " + c.Name
		switch c.Change {
		case "added":
			text = "+ " + c.Name + "=" + *c.Value
		case "changed":
			text = "~ " + c.Name + "=" + *c.Value
		}
		row("env", "%s  (%s)", printable.Line(text, 300), c.By)
	}
}

// rlimitWord is a resource limit; nil is none.
func rlimitWord(v *uint64) string {
	if v == nil {
		return "unlimited"
	}
	return fmt.Sprint(*v)
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
