package report

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/api"
	"stepd/client"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/internal/printable"
	"stepd/slurmconf"
	"stepd/spank"
	"stepd/spank/lint"
	"stepd/step"
)

// PluginsCommand is the verb plugins.
func PluginsCommand(d *client.Dialer) *cobra.Command {
	var check, asJSON bool
	c := &cobra.Command{
		Use:   "plugins [--check] [--json] [FILE]",
		Short: "list the SPANK plugins as a step would load them",
		Long: "plugins lists the node's plugin stack, or FILE's, as it would be loaded: each plugin with the line\n" +
			"that names it, its hooks, its options, the release that it was built for and its missing imports.\n" +
			"It loads the plugins and calls their slurm_spank_init as the caller, in local context.\n" +
			"--check prints what is wrong instead, a finding a line, and exits 1 when one is an error.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(c *cobra.Command, files []string) error {
			conf, err := lintConfig(d, c.Root(), files)
			if err != nil {
				return err
			}
			report := lint.Check(conf)
			switch {
			case asJSON:
				err = printReport(c.OutOrStdout(), conf.Plugstack, report)
			case check:
				err = printFindings(c.OutOrStdout(), report)
			default:
				err = printPlugins(c.OutOrStdout(), report)
			}
			if err == nil && check && report.Failed() {
				return terminal.ExitError(1)
			}
			return err
		},
	}
	c.Flags().BoolVar(&check, "check", false, "print what is wrong, and exit 1 on an error")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return c
}

// lintConfig is what noded says of the stack. With a FILE it works without
// noded, and the defaults hold.
func lintConfig(d *client.Dialer, root *cobra.Command, files []string) (lint.Config, error) {
	var none lint.Config
	host, err := plugins.Beside("spankhost")
	if err != nil {
		return none, err
	}
	node, err := client.Ask(d, func(ctx context.Context, noded *api.Client) (*api.ConfigReply, error) { return noded.Config(ctx) })
	if err != nil && len(files) > 0 {
		node, err = withoutNode(err)
	}
	if err != nil {
		return none, err
	}
	file := node.Plugstack
	if len(files) > 0 {
		file = files[0]
		if _, err := os.Stat(file); err != nil {
			return none, fmt.Errorf("cannot read plugin stack: %w", err)
		}
		if file, err = filepath.Abs(file); err != nil {
			return none, fmt.Errorf("cannot read plugin stack %q: %w", files[0], err)
		}
	}
	return lint.Config{
		Plugstack: file, PluginDirs: node.PluginDirs, AllowReleases: node.AllowReleases, RequireSafe: node.RequireSafe,
		Host: host, BuiltIn: builtIn(root),
		Options: func(p spank.Plugin) ([]lint.Option, error) { return pluginOptions(node, p) },
	}, nil
}

// withoutNode are the defaults, which stand in for a missing noded.
func withoutNode(why error) (*api.ConfigReply, error) {
	conf, _, err := slurmconf.Load("", "localhost")
	if err != nil {
		return nil, err
	}
	terminal.Say("%s; the defaults hold for PluginDir and the accepted releases", why)
	return &api.ConfigReply{PluginDirs: conf.PluginDir}, nil
}

// builtIn are the long options that a plugin's cannot have the name of.
func builtIn(root *cobra.Command) []string {
	names := []string{"help"}
	for _, c := range append(root.Commands(), root) {
		if c != root && c.Annotations[client.UsesPlugins] == "" {
			continue
		}
		for _, flags := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// initPatience bounds slurm_spank_init where the site does not (HookTimeout):
// a command that asks for a list is not to wait for ever.
const initPatience = 10 * time.Second

// pluginOptions loads one plugin as stepctl run does and asks it for its options.
func pluginOptions(node *api.ConfigReply, p spank.Plugin) (options []lint.Option, err error) {
	timeout := initPatience
	if node.HookTimeoutS > 0 {
		timeout = time.Duration(node.HookTimeoutS) * time.Second
	}
	p.Required = true // so that a failure is one
	s, _, err := plugins.Open(context.Background(), node, spank.SessionConfig{
		Context: spank.ContextLocal, Stack: spank.Stack{Plugins: []spank.Plugin{p}}, Env: os.Environ(), HookTimeout: timeout,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	offered, err := s.Init()
	if err != nil {
		return nil, err
	}
	for _, o := range offered {
		options = append(options, lint.Option{Name: o.Name, ArgInfo: o.ArgInfo, Usage: o.Usage, HasArg: o.HasArg})
	}
	if err := s.Exit(nil); err != nil && !plugins.Returned(err) {
		return options, err // a return code changes nothing there
	}
	return options, nil
}

func printReport(w io.Writer, file string, r *lint.Report) error {
	return client.PrintDocument(w, struct {
		Schema    int    `json:"schema"`
		Plugstack string `json:"plugstack"`
		*lint.Report
	}{step.Schema, file, r})
}

func printFindings(w io.Writer, r *lint.Report) error {
	var b strings.Builder
	for _, f := range r.Findings {
		fmt.Fprintln(&b, printable.Line(f.String(), 4000))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printPlugins prints each plugin with what is wrong with it, then what is wrong
// with other lines.
func printPlugins(w io.Writer, r *lint.Report) error {
	var b strings.Builder
	told := make([]bool, len(r.Findings))
	for _, p := range r.Plugins {
		fmt.Fprintf(&b, "%s  %s  %s\n", at(p.File, p.Line), plugins.RequiredWord(p.Required), printable.Line(p.Path, 400))
		field := func(name, text string) {
			if text != "" {
				fmt.Fprintf(&b, "  %-9s  %s\n", name, printable.Line(text, 4000))
			}
		}
		field("state", string(p.State))
		field("arguments", strings.Join(p.Args, " "))
		field("release", p.Release)
		field("hooks", strings.Join(p.Hooks, " "))
		field("options", optionWords(p.Options))
		field("missing", missingWords(p.Missing))
		for i, f := range r.Findings {
			if f.File == p.File && f.Line == p.Line {
				told[i] = true
				field(string(f.Severity), f.What())
			}
		}
	}
	for i, f := range r.Findings {
		if !told[i] {
			fmt.Fprintln(&b, printable.Line(f.String(), 4000))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// optionWords are options as --help has them.
func optionWords(options []lint.Option) string {
	var out []string
	for _, o := range options {
		out = append(out, plugins.OptionWord(o.Name, o.ArgInfo, o.HasArg))
	}
	return strings.Join(out, ", ")
}

func missingWords(missing []lint.Missing) string {
	var out []string
	for _, m := range missing {
		word := m.Symbol
		if m.Object != "" {
			word += " of " + m.Object
		}
		if m.Fatal {
			word += " (it cannot be loaded without)"
		}
		out = append(out, word)
	}
	return strings.Join(out, ", ")
}
