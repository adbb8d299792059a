// Package help is what stepctl says about itself: help screens and man pages, both made of the
// commands (manual.go), and what a shell completes (complete.go).
package help

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"stepd/client/options"
	"stepd/client/terminal"
	"stepd/docs"
	"stepd/internal/manual"
)

// themes group the options of every verb, as srun(1) does in prose; the last one
// stands at the end of a page. One that is not listed is among "Other options".
func themes() []manual.Theme {
	return []manual.Theme{
		{Title: "Tasks and nodes", Options: []string{
			"ntasks", "nodes", "nodelist", "nodefile", "exclude", "ntasks-per-node", "cpus-per-task", "overcommit", "jobid", "exact", "whole", "overlap", "interactive",
			"multi-prog", "relative", "arbitrary", "job",
		}},
		{Title: "Resources and binding", Options: []string{
			"mem", "mem-per-cpu", "gres", "oom-kill-step", "cpu-bind", "mem-bind", "distribution", "hint", "threads-per-core",
			"ntasks-per-core", "ntasks-per-socket",
		}},
		{Title: "Streams and terminal", Options: []string{
			"input", "output", "error", "open-mode", "label", "unbuffered", "pty", "detach-keys", "escape", "read-only", "no-replay", "replay", "raw",
			"input-filter", "output-filter", "error-filter",
		}},
		{Title: "Program and environment", Options: []string{
			"job-name", "chdir", "export", "preserve-env", "export-file", "propagate", "task-prolog", "task-epilog", "prolog", "epilog",
			"mpi", "mpi-combine", "wrap", "uid", "gid", "no-new-privs",
		}},
		{Title: "Time, signals and ends", Options: []string{
			"time", "time-min", "requeue", "no-requeue", "signal", "scope", "kill-on-bad-exit", "wait", "no-kill", "quit-on-interrupt", "disable-status", "immediate", "deadline",
		}},
		{Title: "What is shown", Options: []string{
			"all", "follow", "watch", "delay", "batch", "iterations", "sort", "tasks", "acctg-freq", "json", "svg", "width", "quiet", "verbose", "parsable", "dry-run", "check", "color",
		}},
		{Title: "General", Options: []string{"standalone", "socket", "pam", "help", "version"}},
	}
}

// arguments is how the arguments of options are called, where "STRING" would say
// little.
func arguments() map[string]string {
	return map[string]string{
		"nodes": "N", "nodelist": "HOSTS", "exclude": "HOSTS", "mem": "SIZE", "mem-per-cpu": "SIZE", "gres": "LIST", "oom-kill-step": "0|1",
		"cpu-bind": "TYPE", "mem-bind": "TYPE", "distribution": "HOW", "hint": "KIND", "input": "WHERE", "output": "WHERE", "error": "WHERE",
		"open-mode": "MODE", "job-name": "NAME", "chdir": "DIR", "export": "LIST", "mpi": "TYPE", "wrap": "COMMAND", "uid": "USER", "gid": "GROUP",
		"kill-on-bad-exit": "0|1", "no-kill": "set|off", "acctg-freq": "SECONDS", "socket": "PATH", "signal": "SIGNAL", "scope": "SCOPE", "watch": "SECONDS",
		"jobid": "JOB", "time": "TIME", "immediate": "SECONDS", "propagate": "LIMITS", "task-prolog": "FILE", "task-epilog": "FILE",
		"detach-keys": "KEYS", "replay": "SIZE", "wait": "SECONDS", "delay": "SECONDS", "sort": "FIELD", "svg": "FILE",
	}
}

// PageOf is the manual page of a verb.
func PageOf(c *cobra.Command) *manual.Page {
	p := manual.Of(c, 1, themes(), arguments())
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
	if env := environment(c); len(env) > 0 {
		out = append(out, manual.Topic{Title: "Environment", Entries: env})
	}
	if text := examples()[c.CommandPath()]; text != "" {
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
	usage := manual.Entry{Name: "1", Text: "wrong usage, a refused request, or a daemon that does not answer"}
	codes := map[string][]manual.Entry{
		"run": {
			{Name: "0 to 127", Text: "the highest exit code of the tasks. A command that could not be executed counts with the error's number: 2 it does not exist, 13 it may not be executed"},
			{Name: "128+N", Text: "a task was ended by signal N: 137 is SIGKILL, 139 SIGSEGV, 143 SIGTERM"},
			{Name: "1", Text: "also: wrong usage, a refused request, a failed plugin, or a daemon that is gone"},
		},
		"alloc":   {{Name: "any", Text: "the command's; 128+N where signal N has ended it"}, usage},
		"batch":   {{Name: "0", Text: "the job was admitted; with --wait: it ended well"}, {Name: "any", Text: "with --wait: the script's"}, usage},
		"plugins": {{Name: "0", Text: "all is well, or there are warnings"}, {Name: "1", Text: "with --check: there is an error; else as of every verb"}},
		"attach":  {{Name: "any", Text: "as of stepctl run, where the step ended meanwhile"}, {Name: "0", Text: "detached"}, usage},
		"stepctl": {{Name: "0", Text: "done"}, usage, {Name: "others", Text: "run, alloc, batch --wait and attach: the tasks' codes"}},
	}
	if own := codes[c.Name()]; own != nil {
		return own
	}
	if !c.Runnable() {
		return nil
	}
	return []manual.Entry{{Name: "0", Text: "done"}, usage}
}

func environment(c *cobra.Command) []manual.Entry {
	return map[string][]manual.Entry{
		"stepctl": {
			{Name: "NODED_SOCKET", Text: "noded's socket, where --socket names none. Tasks and scripts have it"},
			{Name: "NO_COLOR", Text: "if it is set and not empty, nothing is coloured; nor is it where output is no terminal, or TERM is dumb"},
			{Name: "COLUMNS", Text: "the width of help screens and bars where output is no terminal"},
		},
		"run": {
			{Name: "SLURM_JOB_ID", Text: "the job that the step becomes one of (--jobid)"},
			{Name: "SLURM_NTASKS", Text: "in a job: --ntasks"},
			{Name: "SLURM_MPI_TYPE", Text: "--mpi"},
			{Name: "SLURM_CPU_BIND, SLURM_MEM_BIND, SLURM_DISTRIBUTION, SLURM_HINT", Text: "the options of these names, where they are not given"},
			{Name: "SLURM_ACCTG_FREQ", Text: "--acctg-freq"},
			{Name: "SPANK_...", Text: "options of plugins, as the job's command has left them"},
		},
	}[c.Name()]
}

func examples() map[string]string {
	return map[string]string{
		"stepctl run": "  stepctl run -n 4 -l hostname\n" +
			"  stepctl run -n 64 --mpi=pmix ./solver input.dat\n" +
			"  stepctl run -n 2 -o out-%t.txt -e none ./a.out\n" +
			"  stepctl run --dry-run -n 8 --cpu-bind=cores ./a.out",
		"stepctl batch":    "  stepctl batch -n 16 job.sh\n  stepctl batch -W --wrap 'make check'",
		"stepctl alloc":    "  stepctl alloc -n 8          # a shell with 8 CPUs\n  stepctl alloc -n 8 make -j8",
		"stepctl events":   "  stepctl events -f 12.0 | jq -r 'select(.event == \"task_exit\")'",
		"stepctl timeline": "  stepctl timeline 12.0\n  stepctl timeline --svg=launch.svg 12.0",
		"stepctl explain":  "  stepctl explain 12.0",
		"stepctl top":      "  stepctl top\n  stepctl top -b -d 5 >>usage.log",
		"stepctl signal":   "  stepctl signal -s USR1 12.0\n  stepctl signal -s STOP 12",
	}
}

// seeAlso are the pages to read next.
func seeAlso(c *cobra.Command) (see []string) {
	add := func(names ...string) {
		for _, name := range names {
			if there, _, err := c.Root().Find([]string{name}); name != c.Name() && err == nil && there.Name() == name {
				see = append(see, "stepctl-"+name+"(1)")
			}
		}
	}
	switch c.Name() {
	case "stepctl":
		return []string{"noded(8)", "stepd.conf(5)", "stepd-json(5)", "stepd-spank(7)"}
	case "run", "alloc", "batch":
		add("run", "alloc", "batch", "explain", "timeline")
		return append(see, "stepd-spank(7)")
	case "ps", "show", "stat", "top", "events", "timeline", "explain":
		add("ps", "show", "stat", "top", "events", "timeline", "explain")
		return append(see, "stepd-json(5)")
	case "signal", "cancel", "suspend", "resume":
		add("signal", "cancel", "suspend", "resume", "ps")
	case "plugins":
		return []string{"stepd-spank(7)", "noded(8)"}
	case "status", "drain":
		return []string{"noded(8)"}
	}
	return see
}
