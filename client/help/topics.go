package help

import (
	"github.com/spf13/cobra"

	"stepd/client/options"
	"stepd/internal/manual"
)

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
	switch c.Name() {
	case "run":
		return []manual.Entry{
			{Name: "0 to 127", Text: "the highest exit code of the tasks. A command that could not be executed counts with the error's number: 2 it does not exist, 13 it may not be executed"},
			{Name: "128+N", Text: "a task was ended by signal N: 137 is SIGKILL, 139 SIGSEGV, 143 SIGTERM"},
			{Name: "1", Text: "also: wrong usage, a refused request, a failed plugin, or a daemon that is gone"},
		}
	case "alloc":
		return []manual.Entry{{Name: "any", Text: "the command's; 128+N where signal N has ended it"}, usage}
	case "batch":
		return []manual.Entry{{Name: "0", Text: "the job was admitted; with --wait: it ended well"}, {Name: "any", Text: "with --wait: the script's"}, usage}
	case "plugins":
		return []manual.Entry{{Name: "0", Text: "all is well, or there are warnings"}, {Name: "1", Text: "with --check: there is an error; else as of every verb"}}
	case "attach":
		return []manual.Entry{{Name: "any", Text: "as of stepctl run, where the step ended meanwhile"}, {Name: "0", Text: "detached"}, usage}
	case "stepctl":
		return []manual.Entry{{Name: "0", Text: "done"}, usage, {Name: "others", Text: "run, alloc, batch --wait and attach: the tasks' codes"}}
	}
	if !c.Runnable() {
		return nil
	}
	return []manual.Entry{{Name: "0", Text: "done"}, usage}
}

func environment(c *cobra.Command) []manual.Entry {
	switch c.Name() {
	case "stepctl":
		return []manual.Entry{
			{Name: "NODED_SOCKET", Text: "noded's socket, where --socket names none. Tasks and scripts have it"},
			{Name: "NO_COLOR", Text: "if it is set and not empty, nothing is coloured; nor is it where output is no terminal, or TERM is dumb"},
			{Name: "COLUMNS", Text: "the width of help screens and bars where output is no terminal"},
		}
	case "run":
		return []manual.Entry{
			{Name: "SLURM_JOB_ID", Text: "the job that the step becomes one of (--jobid)"},
			{Name: "SLURM_NTASKS", Text: "in a job: --ntasks"},
			{Name: "SLURM_MPI_TYPE", Text: "--mpi"},
			{Name: "SLURM_CPU_BIND, SLURM_MEM_BIND, SLURM_DISTRIBUTION, SLURM_HINT", Text: "the options of these names, where they are not given"},
			{Name: "SLURM_ACCTG_FREQ", Text: "--acctg-freq"},
			{Name: "SPANK_...", Text: "options of plugins, as the job's command has left them"},
		}
	}
	return nil
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
