// Package help is what stepctl says about itself: help screens and man pages, both made of the
// commands and of manual.txt, and what a shell completes.
package help

import (
	"context"
	_ "embed" // manual.txt
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"stepd/api"
	"stepd/client"
	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/client/terminal"
	"stepd/client/top"
	"stepd/docs"
	"stepd/internal/manual"
	"stepd/internal/printable"
)

// texts has what the pages say beyond the commands' own words, in sections "[NAME]" whose lines are
// mostly "WORD | TEXT". Of the themes, which group the options of every verb as srun(1) does in
// prose, the last one stands at the end of a page; an option of none is among "Other options". The
// arguments are how an option's is called where "STRING" would say little.
//
//go:embed manual.txt
var texts string

// section is the text of a section, "" where none has the name.
func section(name string) string {
	_, rest, _ := strings.Cut("\n"+texts, "\n["+name+"]\n")
	text, _, _ := strings.Cut(rest, "\n\n[")
	return strings.TrimRight(text, "\n")
}

// entries are the lines of a section.
func entries(name string) (all []manual.Entry) {
	for line := range strings.Lines(section(name)) {
		word, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " | ")
		all = append(all, manual.Entry{Name: word, Text: text})
	}
	return all
}

// PageOf is the manual page of a verb.
func PageOf(c *cobra.Command) *manual.Page {
	var themes []manual.Theme
	for _, e := range entries("themes") {
		themes = append(themes, manual.Theme{Title: e.Name, Options: strings.Fields(e.Text)})
	}
	arguments := map[string]string{}
	for _, e := range entries("arguments") {
		arguments[e.Name] = e.Text
	}
	p := manual.Of(c, 1, themes, arguments)
	p.About = manual.Paragraphs(section("about: " + c.CommandPath()))
	p.Topics = topics(c)
	p.See = seeAlso(c)
	return p
}

// UseManual makes help screens of the pages.
func UseManual(root *cobra.Command) {
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		fmt.Fprint(c.OutOrStdout(), PageOf(c).Text(styleOf(os.Stdout)))
	})
	root.SetUsageFunc(func(c *cobra.Command) error {
		_, err := fmt.Fprint(c.OutOrStderr(), PageOf(c).Text(styleOf(os.Stderr)))
		return err
	})
	root.SetHelpCommand(&cobra.Command{
		Use: "help [COMMAND]", Hidden: true,
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 { // cobra's own word for it is a screen of help, and exit code 0
				return fmt.Errorf("unknown command %q: see %s --help", strings.Join(args, " "), root.Name())
			}
			return c.Help()
		},
	})
}

// styleOf is how a help screen is to look in a file.
func styleOf(f *os.File) manual.Style {
	width, _ := terminal.ScreenSize(f)
	return manual.Style{Width: width, Bold: terminal.Colours(f)}
}

// ManCommand writes the man pages: for make install.
func ManCommand() *cobra.Command {
	return &cobra.Command{
		Use: "man DIR", Short: "write the man pages into DIR", Args: cobra.ExactArgs(1), Hidden: true,
		RunE: func(c *cobra.Command, args []string) error {
			pages, err := ManPages(c.Root())
			if err != nil {
				return err
			}
			for _, p := range pages {
				dir := filepath.Join(args[0], fmt.Sprintf("man%d", p.Section))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return fmt.Errorf("cannot write the man pages: %w", err)
				}
				path := filepath.Join(dir, fmt.Sprintf("%s.%d", p.File(), p.Section))
				if err := os.WriteFile(path, []byte(p.Roff()), 0o644); err != nil {
					return fmt.Errorf("cannot write the man pages: %w", err)
				}
			}
			return nil
		},
	}
}

// ManPages are the pages of all verbs and of the files.
func ManPages(root *cobra.Command) (pages []*manual.Page, err error) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		c.InitDefaultHelpFlag()
		pages = append(pages, PageOf(c))
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				walk(sub)
			}
		}
	}
	for _, c := range root.Commands() {
		if c.Name() == "help" { // cobra's own, which it adds when it runs a verb
			root.RemoveCommand(c)
		}
	}
	walk(root)
	for _, f := range filePages() {
		p, err := manual.Keys(&f.Page, f.document, f.sections...)
		if err != nil {
			return nil, err
		}
		pages = append(pages, p)
	}
	return pages, nil
}

// filePage is the page of a file, of sections of a document.
type filePage struct {
	manual.Page
	document string
	sections []string
}

// filePages are the pages of section 5. Slurm's own names are left to Slurm: both may be
// installed side by side.
func filePages() (pages []filePage) {
	add := func(name, short, about string, sections ...string) {
		pages = append(pages, filePage{
			Page:     manual.Page{Name: name, Section: 5, Short: short, About: manual.Paragraphs(about), See: []string{"noded(8)", "stepd.conf(5)", "stepctl(1)"}},
			document: docs.Configuration, sections: sections,
		})
	}
	const file = "noded reads the site's own file, in Slurm's syntax; it stands beside slurm.conf. `noded --check` prints every mistake in it with its line. A key with a dagger is read and checked, and has no effect yet."
	add("stepd.conf", "configuration of stepd beyond Slurm's", "stepd.conf stands beside slurm.conf and has the same syntax: `Key=Value`, a comment begins at #. No file is a valid one. `noded --check` prints every mistake in it with its line.", "stepd.conf")
	add("stepd-slurm.conf", "what stepd reads of slurm.conf", file, "slurm.conf", "NodeName lines", "PartitionName lines", "Which files")
	add("stepd-cgroup.conf", "what stepd reads of cgroup.conf", file, "cgroup.conf")
	add("stepd-gres.conf", "what stepd reads of gres.conf", file, "gres.conf", "Generic resources")
	add("stepd-job_container.conf", "what stepd reads of job_container.conf", file, "job_container.conf")
	add("stepd-mpi.conf", "what stepd reads of mpi.conf", file, "mpi.conf")
	json := filePage{
		Page: manual.Page{
			Name: "stepd-json", Section: 5, Short: "the documents that stepctl prints with --json",
			About: manual.Paragraphs(strings.TrimSpace(between(docs.JSON, "\n", "\n## "))), See: []string{"stepctl(1)"},
		},
		document: docs.JSON, sections: []string{"Documents", "STEP", "Events"},
	}
	return append(pages, json)
}

// between is what stands behind the first from and before the next to.
func between(text, from, to string) string {
	_, text, _ = strings.Cut(text, from)
	text, _, _ = strings.Cut(text, to)
	return text
}

// topics are the sections of a verb's page beyond its options.
func topics(c *cobra.Command) []manual.Topic {
	var out []manual.Topic
	if t := together(c); len(t.Entries) > 0 {
		out = append(out, t)
	}
	if codes := exitCodes(c); len(codes) > 0 {
		out = append(out, manual.Topic{Title: "Exit codes", Entries: codes})
	}
	if env := entries("environment: " + c.Name()); len(env) > 0 {
		out = append(out, manual.Topic{Title: "Environment", Entries: env})
	}
	if text := section("examples: " + c.CommandPath()); text != "" {
		out = append(out, manual.Topic{Title: "Examples", Text: []string{text}})
	}
	return out
}

// together are the pairs of a verb's options that are refused, and what comes of others
// that say the same or nothing.
func together(c *cobra.Command) manual.Topic {
	t := manual.Topic{Title: "Options that exclude each other"}
	for _, x := range options.Exclusions {
		if c.Flag(x.A) != nil && c.Flag(x.B) != nil {
			t.Entries = append(t.Entries, manual.Entry{Name: "--" + x.A + ", --" + x.B, Text: x.Why})
		}
	}
	switch c.Name() {
	case "run", "alloc", "batch":
		t.Text = []string{"As with Slurm's commands, of an option that is given twice the last counts, and the command line overrules the environment and the lines of a script: " +
			"what it excludes there is left out. --hint gives way to --cpu-bind, --ntasks-per-core and --threads-per-core."}
	}
	if c.Name() == "run" {
		t.Text[0] += " In a job --ntasks-per-node gives way to --ntasks. " +
			"--pty is disregarded where standard input is no terminal; --detach-keys says nothing without --pty, and --open-mode without a file."
	}
	return t
}

func exitCodes(c *cobra.Command) []manual.Entry {
	own := entries("exit codes: " + c.Name())
	if own == nil && c.Runnable() {
		return entries("exit codes")
	}
	return own
}

// seeAlso are the pages to read next.
func seeAlso(c *cobra.Command) (see []string) {
	for _, e := range entries("see also") {
		if !slices.Contains(strings.Fields(e.Name), c.Name()) {
			continue
		}
		for page := range strings.FieldsSeq(e.Text) {
			there, _, err := c.Root().Find([]string{page})
			switch {
			case strings.Contains(page, "("):
				see = append(see, page)
			case page != c.Name() && err == nil && there.Name() == page:
				see = append(see, "stepctl-"+page+"(1)")
			}
		}
	}
	return see
}

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

// Apart sets the arguments that hang on short options of c (-n2) apart from these, as cobra's
// completion wants them. It is for words that are completed and not run: the words of the user's
// command may be among them.
func Apart(c *cobra.Command, words []string) (out []string) {
	for _, word := range words {
		if len(word) > 2 && word[0] == '-' && word[1] != '-' {
			if f := c.Flags().ShorthandLookup(word[1:2]); f != nil && f.NoOptDefVal == "" {
				out = append(out, word[:2], word[2:])
				continue
			}
		}
		out = append(out, word)
	}
	return out
}

// CompleteRefs completes JOB and JOB.STEP of the verbs that take them. ended
// reports whether ended steps' help.
func CompleteRefs(d *client.Dialer, root *cobra.Command) {
	for _, name := range []string{"run", "alloc"} {
		if c, _, err := root.Find([]string{name}); err == nil && c != root {
			c.ValidArgsFunction = completePrograms
		}
	}
	for _, v := range []struct {
		name        string
		ended, many bool
		jobs        bool
	}{
		{"show", true, false, true}, {"stat", true, false, true}, {"explain", true, false, true},
		{"events", true, false, true}, {"timeline", true, false, true}, {"output", true, false, true}, {"ps", true, true, true},
		{"attach", false, false, true}, {"signal", false, false, true}, {"cancel", false, true, true},
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

// completePrograms completes the command of run and alloc to programs of PATH, as a shell does at
// the beginning of a line. Paths, and the command's arguments, are the shell's to complete.
func completePrograms(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || word == "" || strings.Contains(word, "/") {
		return nil, cobra.ShellCompDirectiveDefault
	}
	var out []string
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		entries, _ := os.ReadDir(dir) // a shell passes over one that cannot be read, too
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), word) && !e.IsDir() && unix.Access(filepath.Join(dir, e.Name()), unix.X_OK) == nil {
				out = append(out, e.Name())
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), cobra.ShellCompDirectiveDefault
}

// refs are steps, and jobs, whose numbers begin so, each with what it is.
func refs(d *client.Dialer, ended, jobs bool, word string) (out []string) {
	noded := d.Client()
	ctx, cancel := context.WithTimeout(context.Background(), completePatience)
	defer cancel()
	seen := map[uint32]bool{}
	own := uint32(os.Getuid())
	for rec, err := range noded.Overview(ctx, ended) {
		if err != nil {
			return nil
		}
		if own != 0 && rec.UID != own {
			continue
		}
		words := fmt.Sprintf("%s %s", client.StateWord(rec), printable.Line(rec.Name, 30))
		if id := rec.ID.Name(); strings.HasPrefix(id, word) {
			out = append(out, id+"\t"+words)
		}
		if id := fmt.Sprint(rec.ID.Job); jobs && !seen[rec.ID.Job] && strings.HasPrefix(id, word) {
			seen[rec.ID.Job] = true
			out = append(out, id+"\tjob "+printable.Line(rec.Name, 30))
		}
	}
	if !jobs {
		return out
	}
	var node api.Node // an allocation may have no step yet
	if doc, err := noded.Node(ctx); err != nil || json.Unmarshal(doc, &node) != nil {
		return out
	}
	for _, job := range node.Jobs {
		if id := fmt.Sprint(job.ID); !seen[job.ID] && (own == 0 || job.UID == own) && strings.HasPrefix(id, word) {
			out = append(out, id+"\tjob "+printable.Line(job.Name, 30))
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
