package help

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"stepd/client"
	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/client/top"
	"stepd/internal/printable"
)

// CompletionCommand is the verb completion.
func CompletionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "completion SHELL", Short: "print the completion of bash, zsh or fish",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(c *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return c.Root().GenBashCompletionV2(os.Stdout, true)
			case "zsh":
				return c.Root().GenZshCompletion(os.Stdout)
			}
			return c.Root().GenFishCompletion(os.Stdout, true)
		},
	}
}

// completePatience is how long a shell's user waits for noded, and for plugins.
const completePatience = 2 * time.Second

// Completing is the verb of a command line that is to be completed, nil where none
// is or the verb is not known yet; rest are the words behind it.
func Completing(root *cobra.Command, args []string) (c *cobra.Command, rest []string) {
	if len(args) < 2 || args[0] != cobra.ShellCompRequestCmd && args[0] != cobra.ShellCompNoDescRequestCmd {
		return nil, nil
	}
	c, rest, err := root.Find(args[1 : len(args)-1])
	if err != nil || c == root {
		return nil, nil
	}
	return c, rest
}

// CompleteRefs completes JOB and JOB.STEP of the verbs that take them. ended
// reports whether ended steps' help.
func CompleteRefs(d *client.Dialer, root *cobra.Command) {
	for _, v := range []struct {
		name        string
		ended, many bool
		jobs        bool
	}{
		{"show", true, false, true}, {"stat", true, false, true}, {"explain", true, false, true},
		{"events", true, false, false}, {"timeline", true, false, false}, {"output", true, false, false},
		{"attach", false, false, false}, {"signal", false, false, true}, {"cancel", false, true, true},
		{"suspend", false, true, true}, {"resume", false, true, true}, {"top", false, true, true},
	} {
		c, _, err := root.Find([]string{v.name})
		if err != nil || c == root || c.ValidArgsFunction != nil {
			continue
		}
		c.ValidArgsFunction = func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 && !v.many {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return refs(d, v.ended, v.jobs, word), cobra.ShellCompDirectiveNoFileComp
		}
	}
}

// refs are steps, and jobs, whose numbers begin so, each with what it is.
func refs(d *client.Dialer, ended, jobs bool, word string) (out []string) {
	noded := d.Client()
	ctx, cancel := context.WithTimeout(context.Background(), completePatience)
	defer cancel()
	seen := map[uint32]bool{}
	own := uint32(os.Getuid())
	for rec, err := range noded.List(ctx, ended) {
		if err != nil {
			return nil
		}
		if own != 0 && rec.UID != own {
			continue
		}
		words := fmt.Sprintf("%s %s", client.StateWord(rec), printable.Line(rec.Name, 30))
		if id := rec.ID.String(); strings.HasPrefix(id, word) {
			out = append(out, id+"\t"+words)
		}
		if id := fmt.Sprint(rec.ID.Job); jobs && !seen[rec.ID.Job] && strings.HasPrefix(id, word) {
			seen[rec.ID.Job] = true
			out = append(out, id+"\tjob "+printable.Line(rec.Name, 30))
		}
	}
	return out
}

// CompleteFlags completes the values of options that have few.
func CompleteFlags(root *cobra.Command) {
	values := map[string][]string{
		"mpi": {"none", "pmi2", "pmix", "list"}, "open-mode": {"append", "truncate"}, "export": {"ALL", "NONE"},
		"hint":     {"compute_bound", "memory_bound", "multithread", "nomultithread", "help"},
		"cpu-bind": {"none", "cores", "sockets", "threads", "ldoms", "rank", "map_cpu:", "mask_cpu:", "verbose,", "quiet,", "help"},
		"mem-bind": {"none", "local", "rank", "map_mem:", "mask_mem:", "prefer,", "help"},
		"scope":    {"leader", "tasks", "cgroup", "all"}, "signal": signalNames(), "oom-kill-step": {"0", "1"}, "kill-on-bad-exit": {"0", "1"},
		"sort": top.TopFields(),
	}
	files := []string{"input", "output", "error", "task-prolog", "task-epilog", "svg", "socket"}
	for _, c := range root.Commands() {
		for name, list := range values {
			if c.Flags().Lookup(name) != nil {
				_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)) // once for each
			}
		}
		for _, name := range files {
			if c.Flags().Lookup(name) != nil {
				_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
			}
		}
		if c.Flags().Lookup("chdir") != nil {
			_ = c.RegisterFlagCompletionFunc("chdir", cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
		}
	}
}

// signalNames are the names of signal(7) without SIG.
func signalNames() (names []string) {
	for sig := unix.Signal(1); sig < 32; sig++ {
		if name := unix.SignalName(sig); name != "" {
			names = append(names, strings.TrimPrefix(name, "SIG"))
		}
	}
	return names
}

// CompletePlugins makes the plugins' options flags of c, so that they are completed.
// A completion that fails completes less.
func CompletePlugins(d *client.Dialer, c *cobra.Command, rest []string) {
	if seen := options.Peek(c, rest); seen.Socket != "" {
		d.Socket = seen.Socket
	}
	ctx, cancel := context.WithTimeout(context.Background(), completePatience)
	defer cancel()
	if p := plugins.Offered(ctx, d.Client(), client.ContextOf(c), completePatience); p != nil {
		d.Plugins = p // close ends it
		p.AddFlags(c)
	}
}
