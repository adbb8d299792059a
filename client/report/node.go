package report

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
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
			columns, _ := terminal.ScreenSize(os.Stdout)
			return showNode(os.Stdout, doc, columns)
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

// showNode prints the node document for people, in lines of at most columns, 0 of any length. Its name and
// state, the reason and what to do stand in the first three.
func showNode(w io.Writer, doc []byte, columns int) error {
	n, err := parseNode(doc)
	if err != nil {
		return err
	}
	shown := n.Jobs[:min(len(n.Jobs), jobsShown)]
	var text, b strings.Builder
	err = client.Show(&text, layouts, "node.tmpl", struct {
		*api.Node
		Shown []api.NodeJob
		More  int
	}{n, shown, len(n.Jobs) - len(shown)})
	if err != nil {
		return err
	}
	const indent = 13 // of the texts behind their names
	rest := ""
	for line := range strings.Lines(text.String()) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case columns == 0 || printable.Width(line) <= columns:
			b.WriteString(line + "\n")
		case strings.HasPrefix(line, "  reason "):
			line, rest = printable.First(line, columns)
			b.WriteString(line + "\n")
			continue // what to do comes next
		default:
			at := min(indent, len(line))
			b.WriteString(printable.Wrap(line[at:], line[:at], strings.Repeat(" ", indent), columns) + "\n")
		}
		if rest != "" {
			b.WriteString(printable.Wrap(rest, strings.Repeat(" ", indent), strings.Repeat(" ", indent), columns) + "\n")
			rest = ""
		}
	}
	_, err = io.WriteString(w, b.String())
	return err
}

func parseNode(doc []byte) (*api.Node, error) {
	n := new(api.Node)
	if err := json.Unmarshal(doc, n); err != nil {
		return nil, fmt.Errorf("cannot parse noded's document: %w", err)
	}
	return n, nil
}

// layouts are how documents look for people.
//
//go:embed layouts
var layouts embed.FS

// jobsShown bounds the jobs that are listed: ps has them all.
const jobsShown = 20

// PluginsCommand is the verb plugins.
func PluginsCommand(d *client.Dialer) *cobra.Command {
	var check, asJSON bool
	c := &cobra.Command{
		Use:   "plugins [--check] [--json] [FILE]",
		Short: "list the SPANK plugins as a step would load them",
		Args:  cobra.MaximumNArgs(1),
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

// lintConfig is what noded says of the stack, or withoutNode.
func lintConfig(d *client.Dialer, root *cobra.Command, files []string) (lint.Config, error) {
	var none lint.Config
	host, err := plugins.Beside("spankhost")
	if err != nil {
		return none, err
	}
	node, err := client.Ask(d, func(ctx context.Context, noded *api.Client) (*api.ConfigReply, error) { return noded.Config(ctx) })
	if err != nil {
		node, err = withoutNode(d, err, len(files) > 0)
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

// withoutNode stands in for a missing noded: what slurmd reads here, whose steps have that
// stack, else, for a file of the user's, the defaults.
func withoutNode(d *client.Dialer, why error, file bool) (*api.ConfigReply, error) {
	if _, named := d.Path(); !named {
		if conf, err := slurmdConf(); err == nil {
			terminal.Say("no noded serves here: %s holds, as for the steps of slurmd", conf.File)
			return &api.ConfigReply{
				Plugstack: conf.PlugStackConfig, PluginDirs: conf.PluginDir, AllowReleases: conf.Stepd.SpankAllowReleases,
				RequireSafe: conf.Stepd.RequireSafePlugins, HookTimeoutS: int(conf.Stepd.HookTimeout / time.Second),
			}, nil
		}
	}
	if !file {
		return nil, why
	}
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

// initPatience bounds dlopen and each hook where the site does not (HookTimeout):
// a command that asks for a list is not to wait for ever.
const initPatience = 10 * time.Second

// pluginOptions loads one plugin as stepctl run does, then as alloc and batch do, and asks it
// for its options. The remote side is not asked: what plugins do there they do as root, to a
// step, and there is none.
func pluginOptions(node *api.ConfigReply, p spank.Plugin) (options []lint.Option, err error) {
	p.Required = true // so that a failure is one
	for _, c := range []spank.Context{spank.ContextLocal, spank.ContextAllocator} {
		offered, err := offeredIn(c, node, p)
		if err != nil {
			return options, err
		}
		for _, o := range offered {
			is := func(known lint.Option) bool { return known.Name == o.Name }
			if i := slices.IndexFunc(options, is); i >= 0 {
				options[i].Contexts = append(options[i].Contexts, c.String())
			} else {
				options = append(options, lint.Option{Name: o.Name, ArgInfo: o.ArgInfo, Usage: o.Usage, HasArg: o.HasArg, Contexts: []string{c.String()}})
			}
		}
	}
	return options, nil
}

// offeredIn are the options of a plugin in a context.
func offeredIn(c spank.Context, node *api.ConfigReply, p spank.Plugin) (offered []spank.Option, err error) {
	timeout := cmp.Or(time.Duration(node.HookTimeoutS)*time.Second, initPatience)
	s, _, err := plugins.Open(context.Background(), node, spank.SessionConfig{
		Context: c, Stack: spank.Stack{Plugins: []spank.Plugin{p}}, Env: os.Environ(), HookTimeout: timeout,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if offered, err = s.Init(); err != nil {
		return nil, err
	}
	if err := s.Exit(nil); err != nil && !plugins.Returned(err) {
		return offered, err // a return code changes nothing there
	}
	return offered, nil
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
	if len(r.Findings) == 0 {
		fmt.Fprintf(&b, "%s, no problem\n", Plural(len(r.Plugins), "plugin"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Plural is a number of things.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// printPlugins prints each plugin with what is wrong with it, then what is wrong
// with other lines.
func printPlugins(w io.Writer, r *lint.Report) error {
	ofPlugin := func(f lint.Finding) bool {
		return slices.ContainsFunc(r.Plugins, func(p lint.Plugin) bool { return f.File == p.File && f.Line == p.Line })
	}
	return client.Show(w, layouts, "plugins.tmpl", struct {
		*lint.Report
		Others []lint.Finding
	}{r, slices.DeleteFunc(slices.Clone(r.Findings), ofPlugin)})
}
