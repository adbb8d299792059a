package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/client"
	"stepd/client/help"
	"stepd/client/options"
	"stepd/internal/manual"
	"stepd/internal/testkit"
)

// parsed parses a command line, with the check that comes before its verb is run.
func parsed(t *testing.T, line string) error {
	t.Helper()
	root := newRoot(&client.Dialer{})
	c, args, err := root.Find(strings.Fields(line))
	if err != nil {
		return options.UnknownVerb(root, err)
	}
	c.InitDefaultHelpFlag()
	if err := c.ParseFlags(args); err != nil {
		return c.FlagErrorFunc()(c, err)
	}
	return root.PersistentPreRunE(c, c.Flags().Args())
}

// Options that cannot both hold are refused in one line that names both, in whichever
// order they stand; what srun takes side by side is taken.
func TestContradictions(t *testing.T) {
	const both = " exclude each other"
	for line, want := range map[string]string{
		"run --pty --label sh":              "--pty and --label" + both,
		"run -l --pty sh":                   "--pty and --label" + both,
		"run --pty -o out sh":               "--pty and --output" + both,
		"run --pty -e none sh":              "--pty and --error" + both,
		"run --pty -i 1 sh":                 "--pty and --input" + both,
		"run --mem=1 --mem-per-cpu=1 true":  "--mem and --mem-per-cpu" + both,
		"alloc --mem-per-cpu=1 --mem=1":     "--mem and --mem-per-cpu" + both,
		"batch --mem=0 --mem-per-cpu=1 x":   "--mem and --mem-per-cpu" + both,
		"run --whole --exact true":          "--exact and --whole" + both,
		"run -Q -v true":                    "--quiet and --verbose" + both,
		"batch -Qvv x":                      "--quiet and --verbose" + both,
		"run --standalone --jobid=3 true":   "--standalone and --jobid" + both,
		"run --socket=/s --standalone true": "--standalone and --socket" + both,
		"run --json true":                   "--json is of no use without --dry-run",
		"top -b --json":                     "--batch and --json" + both,
		"timeline --json --svg=f 1.0":       "--svg and --json" + both,
		"batch --no-requeue --requeue x":    "", // neither says anything
		"run --pty -i all -o all sh":        "", // what it is without them
		"run --pty=false -l sh":             "",
		"run --pty -u -K -n2 sh":            "",
		"run --pty --multi-prog f":          "",
		"run --json --dry-run true":         "",
		"run -l -u -o f -e g true":          "",
		"run --exact -O true":               "",
		"run --detach-keys=none true":       "",
		"run --hint=nomultithread --cpu-bind=cores --threads-per-core=1 true": "", // measured: --hint gives way
		"run -W 3 -K --open-mode=append -t 5 --signal=USR1 true":              "",
		"run -Q true":                      "",
		"run -vv true":                     "",
		"run true --pty --label --no-such": "", // the command's
	} {
		err := parsed(t, line)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", line, err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}

// Every pair of the table is one that some verb has: one that was renamed would never
// be refused.
func TestExclusionsExist(t *testing.T) {
	root := newRoot(&client.Dialer{})
	has := func(a, b string) bool {
		for _, c := range root.Commands() {
			c.InitDefaultHelpFlag()
			if f := c.Flags(); f.Lookup(a) != nil && (f.Lookup(b) != nil || c.InheritedFlags().Lookup(b) != nil) {
				return true
			}
		}
		return false
	}
	for _, x := range options.Exclusions {
		if !has(x.A, x.B) {
			t.Errorf("no verb has both --%s and --%s", x.A, x.B)
		}
	}
	for _, r := range options.Requirements {
		if !has(r.Option, r.Needs) {
			t.Errorf("no verb has both --%s and --%s", r.Option, r.Needs)
		}
	}
}

func TestUnknownOptions(t *testing.T) {
	for line, want := range map[string]string{
		"run --ntask=2 true":     "unknown option --ntask: did you mean --ntasks?",
		"run --ntaks=2 true":     "unknown option --ntaks: did you mean --ntasks?",
		"run --lable true":       "unknown option --lable: did you mean --label?",
		"run --cpu_bind=no true": "unknown option --cpu_bind: did you mean --cpu-bind?",
		"run --kill-on-bad true": "unknown option --kill-on-bad: did you mean --kill-on-bad-exit?",
		"run --multiprog f":      "unknown option --multiprog: did you mean --multi-prog?",
		"top --iteration=2":      "unknown option --iteration: did you mean --iterations?",
		"run --partitio=x true":  "unknown option --partitio: see stepctl run --help",
		"run --nosuch true":      "unknown option --nosuch: see stepctl run --help",
		"run --x true":           "unknown option --x: see stepctl run --help",
		"run -y true":            "unknown option -y: see stepctl run --help",
		"cancle 1":               `unknown command "cancle": did you mean "cancel"?`,
		"time 1.0":               `unknown command "time": did you mean "timeline"?`,
		"xyzzy":                  `unknown command "xyzzy": see stepctl --help`,
		"squeue":                 `unknown command "squeue": what squeue does for Slurm does stepctl ps`,
		"ps --al":                "unknown option --al: did you mean --all?",
		"run -n":                 "option -n needs a value: see stepctl run --help",
	} {
		if err := parsed(t, line); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}

// TestSlurmVerbs: each command of Slurm's that has a verb here names it, and that verb exists.
func TestSlurmVerbs(t *testing.T) {
	for word, verbs := range map[string]string{
		"sacct": "ps --all", "salloc": "alloc", "sattach": "attach", "sbatch": "batch", "scancel": "cancel", "scontrol": "show, suspend, resume and node",
		"sinfo": "node status", "squeue": "ps", "srun": "run", "sstat": "stat",
	} {
		want := fmt.Sprintf("unknown command %q: what %s does for Slurm does stepctl %s", word, word, verbs)
		if err := parsed(t, word); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %q", word, err, want)
		}
		for _, verb := range strings.Split(strings.ReplaceAll(verbs, " and ", ", "), ", ") {
			words := strings.Fields(verb)
			c, args, err := newRoot(&client.Dialer{}).Find(words)
			if err != nil || c.Name() != words[len(words)-len(args)-1] || c.ParseFlags(args) != nil {
				t.Errorf("%s: there is no stepctl %s: %v", word, verb, err)
			}
		}
	}
}

// A verb with too few or too many arguments says which it takes.
func TestArguments(t *testing.T) {
	root := newRoot(&client.Dialer{})
	for line, want := range map[string]string{
		"show":           "an argument is missing: stepctl show JOB[.STEP]",
		"show 1 2":       `"2" is one argument too many: stepctl show JOB[.STEP]`,
		"cancel":         "an argument is missing: stepctl cancel JOB[.STEP]...",
		"node status x":  `"x" is one argument too many: stepctl node status`,
		"node drain":     "an argument is missing: stepctl node drain REASON",
		"completion":     "an argument is missing: stepctl completion SHELL",
		"completion ash": `stepctl completion: "ash" is none of bash, zsh, fish`,
		"explain 1":      "",
		"ps 1 2.0":       "",
	} {
		c, args, err := root.Find(strings.Fields(line))
		if err != nil {
			t.Fatal(err)
		}
		err = c.ValidateArgs(args)
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}

// help with no verb's name is an error, as that name alone is.
func TestHelpOfNothing(t *testing.T) {
	for line, want := range map[string]string{
		"help xyzzy": `unknown command "xyzzy": see stepctl --help`, "help node xyzzy": `unknown command "node xyzzy": see stepctl --help`, "help ps": "",
	} {
		root := newRoot(&client.Dialer{})
		root.SetArgs(strings.Fields(line))
		root.SetOut(io.Discard)
		root.SilenceErrors, root.SilenceUsage = true, true
		err := root.Execute()
		if err != nil {
			err = options.UnknownVerb(root, err)
		}
		if want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}

// What has left is refused by its name, with where its work is done now.
func TestLeft(t *testing.T) {
	const now = " is not supported: use Slurm: docs/slurm.md"
	for line, want := range map[string]string{
		"batch --array=0-3 x":                   "--array" + now,
		"batch -a 0-3 x":                        "--array" + now,
		"batch -a0-3 x":                         "--array" + now,
		"batch -d afterok:3 x":                  "--dependency" + now,
		"run --dependency=singleton true":       "--dependency" + now,
		"run --begin now+1 true":                "--begin" + now,
		"alloc -b now+1":                        "--begin" + now,
		"alloc -H":                              "--hold" + now,
		"batch --hold x":                        "--hold" + now,
		"batch --kill-on-invalid-dep=yes x":     "--kill-on-invalid-dep" + now,
		"run --bcast true":                      "--bcast" + now,
		"run --bcast=/tmp/x true":               "--bcast" + now,
		"run --send-libs --bcast true":          "--send-libs" + now,
		"run --compress=lz4 true":               "--compress" + now,
		"hold 3":                                "stepctl hold" + now,
		"release 3":                             "stepctl release" + now,
		"requeue 3":                             "stepctl requeue" + now,
		"run true --array=3":                    "", // the command's
		"batch --requeue --no-requeue x --hold": "",
	} {
		err := parsed(t, line)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", line, err)
		case want != "" && (err == nil || err.Error() != want):
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
}

// The options that have left are not shown.
func TestLeftIsOnNoPage(t *testing.T) {
	for _, c := range []*cobra.Command{client.RunCommand(&client.Dialer{}), client.AllocCommand(&client.Dialer{}), client.BatchCommand(&client.Dialer{})} {
		if page := help.PageOf(c).Roff(); strings.Contains(page, "dependency") {
			t.Errorf("the page of %s has --dependency", c.Name())
		}
	}
}
func TestCompleting(t *testing.T) {
	for _, c := range []struct {
		args []string
		verb string
		rest []string
	}{
		{[]string{"__complete", "run", "-n", "2", "--"}, "run", []string{"-n", "2"}},
		{[]string{"__completeNoDesc", "--socket", "/s", "alloc", "-"}, "alloc", []string{"--socket", "/s"}},
		{[]string{"__complete", "ru"}, "", nil},
		{[]string{"__complete"}, "", nil},
		{[]string{"run", "--help"}, "", nil},
	} {
		got, rest := help.Completing(newRoot(&client.Dialer{}), c.args)
		switch {
		case got == nil && c.verb == "":
		case got == nil || got.Name() != c.verb || !slices.Equal(rest, c.rest):
			t.Errorf("%q: %v, %q", c.args, got, rest)
		}
	}
}

// TestThemes: no option of a verb is among the others, and no verb is without a word
// on its exit codes.
func TestThemes(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		p := help.PageOf(c)
		for _, g := range p.Groups {
			if g.Title == "Other options" {
				t.Errorf("%s: %v are in no theme of client/help/manual.txt", c.CommandPath(), g.Options)
			}
		}
		if c.Runnable() && c.Name() != "help" && !slices.ContainsFunc(p.Topics, func(t manual.Topic) bool { return t.Title == "Exit codes" }) {
			t.Errorf("%s: its exit codes are not told", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&client.Dialer{}))
}

// TestManPages: there is one for every verb and file, and neither groff nor mandoc finds
// fault with any.
func TestManPages(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed")
	}
	dir := t.TempDir()
	root := newRoot(&client.Dialer{})
	root.SetArgs([]string{"man", dir})
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "man?", "*"))
	if err != nil || len(files) < 25 {
		t.Fatalf("%d pages, %v: %q", len(files), err, files)
	}
	for _, want := range []string{"man1/stepctl.1", "man1/stepctl-run.1", "man1/stepctl-node-drain.1", "man5/stepd.conf.5", "man5/stepd-slurm.conf.5", "man5/stepd-json.5"} {
		if _, err := os.Stat(filepath.Join(dir, want)); err != nil {
			t.Error(err)
		}
	}
	cmd := exec.Command(groff, append([]string{"-man", "-ww", "-Tutf8", "-P-cbou"}, files...)...)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil || said.Len() > 0 {
		t.Errorf("groff: %v\n%s", err, &said)
	}
	if !strings.Contains(out.String(), "HookTimeout") || !strings.Contains(out.String(), "ntasks") {
		t.Errorf("neither an option nor a key is in %d bytes of pages", out.Len())
	}
	testkit.LintManual(t, append(files, "../../docs/man/stepd-spank.7", "../../docs/man/stepd-slurm.7")...)
}

// TestSeeAlso: a page that is named exists.
func TestSeeAlso(t *testing.T) {
	pages, err := help.ManPages(newRoot(&client.Dialer{}))
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{"noded(8)": true, "stepd-spank(7)": true}
	for _, p := range pages {
		have[p.File()+"("+string(rune('0'+p.Section))+")"] = true
	}
	for _, p := range pages {
		for _, name := range p.See {
			if !have[name] {
				t.Errorf("%s: see also %s, which is not there", p.File(), name)
			}
		}
	}
}
