// Command stepctl is the client of noded: what srun, scancel and squeue are to
// Slurm.
package main

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"stepd/client"
	"stepd/client/help"
	"stepd/client/options"
	"stepd/client/report"
	"stepd/client/terminal"
	"stepd/client/top"
	"stepd/internal/build"
	"stepd/internal/oneproc"
	"stepd/internal/stack"
)

func main() {
	if len(os.Args) == 1 && os.Args[0] == client.ReaderName {
		client.ServeReader(os.Stdin, os.Stdout)
		return
	}
	stack.Grow()
	err := execute(os.Args[1:])
	var code terminal.ExitError
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		for line := range strings.SplitSeq(err.Error(), "\n") { // a script may have several wrong lines
			terminal.Say("error: %s", line)
		}
		os.Exit(1) // never 2, which is ENOENT of a task (design §7)
	}
}

// execute runs the verb. The plugins' options are the command line's too: what
// has them is loaded first.
func execute(args []string) error {
	d := &client.Dialer{}
	defer d.Close()
	root := rootFor(d, args)
	root.SetArgs(args)
	if c, rest, err := root.Find(args); err == nil && c.Annotations[client.UsesPlugins] != "" {
		if at := slices.Index(args, c.Name()); at >= 0 {
			root.SetArgs(append(slices.Clone(args[:at+1]), options.WrittenOut(c, args[at+1:])...))
			rest = options.WrittenOut(c, rest)
		}
		if err := d.Prepare(c, rest); err != nil {
			return err
		}
	}
	if c, rest := help.Completing(root, args); c != nil {
		last := args[len(args)-1]
		root.SetArgs(append(help.Apart(c, args[:len(args)-1]), last))
		if c.Annotations[client.UsesPlugins] != "" && strings.HasPrefix(last, "-") {
			help.CompletePlugins(d, c, rest)
		}
	}
	return options.UnknownVerb(root, root.Execute())
}

// rootFor is the root with as many verbs as args need: a step pays for them all, and most
// commands are run.
func rootFor(d *client.Dialer, args []string) *cobra.Command {
	verb := args
	for len(verb) > 1 && verb[0] == "--socket" {
		verb = verb[2:]
	}
	if len(verb) > 0 && verb[0] == "run" {
		d.Processors = oneproc.Processors
		root := bareRoot(d)
		root.AddCommand(client.RunCommand(d))
		return root
	}
	runtime.GOMAXPROCS(oneproc.Processors)
	return newRoot(d)
}

// newRoot is the root with all verbs.
func newRoot(d *client.Dialer) *cobra.Command {
	root := bareRoot(d)
	root.AddCommand(client.RunCommand(d), client.AllocCommand(d), client.BatchCommand(d), report.PSCommand(d), report.ShowCommand(d), report.SignalCommand(d), report.CancelCommand(d), report.AdoptCommand(d), report.SuspendCommand(d), report.ResumeCommand(d), report.StatCommand(d), report.ExplainCommand(d), client.AttachCommand(d), client.OutputCommand(d),
		report.EventsCommand(d), report.TimelineCommand(d), top.TopCommand(d), report.NodeCommand(d), report.PluginsCommand(d), help.CompletionCommand(), help.ManCommand())
	options.NameArguments(root)
	help.CompleteRefs(d, root)
	help.CompleteFlags(root)
	return root
}

// bareRoot is the root without a verb.
func bareRoot(d *client.Dialer) *cobra.Command {
	root := &cobra.Command{
		Use:                "stepctl",
		Short:              "run and control job steps on this node",
		Version:            build.Line(),
		SilenceErrors:      true,
		DisableSuggestions: true, // cobra's take lines of their own
		SilenceUsage:       true,
	}
	root.SetFlagErrorFunc(d.FlagError)
	root.PersistentPreRunE = options.Check
	root.Flags().BoolP("version", "V", false, "print the version and exit")
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().StringVar(&d.Socket, "socket", "", "noded's socket (default $NODED_SOCKET, then "+client.DefaultSocket+")")
	root.CompletionOptions.DisableDefaultCmd = true
	help.UseManual(root)
	return root
}
