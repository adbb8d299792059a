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

	"stepd/internal/build"
)

func main() {
	if len(os.Args) == 1 && os.Args[0] == readerName {
		serveReader(os.Stdin, os.Stdout)
		return
	}
	err := execute(os.Args[1:])
	var code exitError
	switch {
	case err == nil:
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		say("error: %s", err)
		os.Exit(1) // never 2, which is ENOENT of a task (design §7)
	}
}

// execute runs the verb. The plugins' options are the command line's too: what
// has them is loaded first.
func execute(args []string) error {
	d := &dialer{}
	defer d.close()
	root := rootFor(d, args)
	root.SetArgs(args)
	if c, rest, err := root.Find(args); err == nil && c.Annotations[usesPlugins] != "" {
		if at := slices.Index(args, c.Name()); at >= 0 {
			root.SetArgs(append(slices.Clone(args[:at+1]), writtenOut(c, args[at+1:])...))
			rest = writtenOut(c, rest)
		}
		if err := d.prepare(c, rest); err != nil {
			return err
		}
	}
	if c, rest := completing(root, args); c != nil && c.Annotations[usesPlugins] != "" && strings.HasPrefix(args[len(args)-1], "-") {
		completePlugins(d, c, rest)
	}
	return unknownVerb(root, root.Execute())
}

// rootFor is the root with as many verbs as args need: a step pays for them all, and most
// commands are run.
func rootFor(d *dialer, args []string) *cobra.Command {
	verb := args
	for len(verb) > 1 && verb[0] == "--socket" {
		verb = verb[2:]
	}
	if len(verb) > 0 && verb[0] == "run" {
		// Its goroutines wait for each other: with a second processor each handing over
		// wakes a thread, 12 % of what a run costs.
		runtime.GOMAXPROCS(1)
		root := bareRoot(d)
		root.AddCommand(runCommand(d))
		return root
	}
	return newRoot(d)
}

// newRoot is the root with all verbs.
func newRoot(d *dialer) *cobra.Command {
	root := bareRoot(d)
	root.AddCommand(runCommand(d), allocCommand(d), batchCommand(d), psCommand(d), showCommand(d), signalCommand(d), cancelCommand(d), adoptCommand(d), suspendCommand(d), resumeCommand(d), statCommand(d), explainCommand(d), attachCommand(d), outputCommand(d),
		eventsCommand(d), timelineCommand(d), topCommand(d), nodeCommand(d), pluginsCommand(d), completionCommand(), manCommand())
	completeRefs(d, root)
	completeFlags(root)
	return root
}

// bareRoot is the root without a verb.
func bareRoot(d *dialer) *cobra.Command {
	root := &cobra.Command{
		Use:   "stepctl",
		Short: "run and control job steps on this node",
		Long: "stepctl is the client of noded, the daemon of a node: what srun, sbatch, salloc, scancel, squeue and sstat are to Slurm, with srun's letters and meanings.\n\n" +
			"JOB.STEP is the number of a step, such as 12.0; JOB stands for all steps of a job.",
		Version:            build.Line(),
		SilenceErrors:      true,
		DisableSuggestions: true, // cobra's take lines of their own
		SilenceUsage:       true,
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return flagError(c.Flags(), err) })
	root.PersistentPreRunE = checkOptions
	root.Flags().BoolP("version", "V", false, "print the version and exit")
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentFlags().StringVar(&d.socket, "socket", "", "noded's socket (default $NODED_SOCKET, then "+defaultSocket+")")
	root.CompletionOptions.DisableDefaultCmd = true
	useManual(root)
	return root
}
