package client

import (
	"cmp"
	"context"
	"embed"
	"io"
	"os"
	"slices"
	"strings"

	"stepd/api"
	"stepd/client/options"
	"stepd/client/plugins"
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

//go:embed layouts
var layouts embed.FS

func showDryRun(to io.Writer, d *api.DryRun) error { return Show(to, layouts, "dryrun.tmpl", d) }
