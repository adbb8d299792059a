package main

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// parsed parses a command line, with the check that comes before its verb is run.
func parsed(t *testing.T, line string) error {
	t.Helper()
	root := newRoot(&dialer{})
	c, args, err := root.Find(strings.Fields(line))
	if err != nil {
		return unknownVerb(root, err)
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
	root := newRoot(&dialer{})
	has := func(a, b string) bool {
		for _, c := range root.Commands() {
			c.InitDefaultHelpFlag()
			if f := c.Flags(); f.Lookup(a) != nil && (f.Lookup(b) != nil || c.InheritedFlags().Lookup(b) != nil) {
				return true
			}
		}
		return false
	}
	for _, x := range exclusions {
		if !has(x.a, x.b) {
			t.Errorf("no verb has both --%s and --%s", x.a, x.b)
		}
	}
	for _, r := range requirements {
		if !has(r.option, r.needs) {
			t.Errorf("no verb has both --%s and --%s", r.option, r.needs)
		}
	}
}

// setTerminal makes standard input a terminal until the test ends.
func setTerminal(t *testing.T) {
	t.Helper()
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	stdin := os.Stdin
	os.Stdin = terminal
	t.Cleanup(func() { os.Stdin = stdin; terminal.Close() })
}

// What was given overrules what contradicts it in the environment or in a script.
func TestOverruled(t *testing.T) {
	t.Setenv("SLURM_LABELIO", "1")
	setTerminal(t)
	o, _, err := parse(t, "--pty", "prog")
	if err != nil {
		t.Fatal(err)
	}
	if err := optionsFromEnv(o.nodes.flags, runEnv); err != nil || o.label || o.nodes.flags.Changed("label") {
		t.Errorf("SLURM_LABELIO beside --pty: %t, %v", o.label, err)
	}
	if o, _, err = parse(t, "prog"); err != nil {
		t.Fatal(err)
	}
	if err := optionsFromEnv(o.nodes.flags, runEnv); err != nil || !o.label {
		t.Errorf("SLURM_LABELIO alone: %t, %v", o.label, err)
	}

	c := batchCommand(&dialer{})
	if err := c.ParseFlags([]string{"--mem-per-cpu=1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := scriptOptions(c, &plugins{}, "job.sh", []byte("#!/bin/sh\n#SBATCH --mem=5 -J name\n")); err != nil || c.Flags().Changed("mem") || c.Flags().Lookup("job-name").Value.String() != "name" {
		t.Errorf("#SBATCH --mem beside --mem-per-cpu: %v", err)
	}
	if _, err := scriptOptions(c, &plugins{}, "job.sh", []byte("#!/bin/sh\n#SBATCH -Q -v\n")); err == nil || !strings.HasPrefix(err.Error(), "job.sh:2: #SBATCH: --quiet and --verbose") {
		t.Errorf("#SBATCH -Q -v: %v", err)
	}
}

func TestUnknownOptions(t *testing.T) {
	for line, want := range map[string]string{
		"run --ntask=2 true":     "unknown flag: --ntask: did you mean --ntasks?",
		"run --ntaks=2 true":     "unknown flag: --ntaks: did you mean --ntasks?",
		"run --lable true":       "unknown flag: --lable: did you mean --label?",
		"run --cpu_bind=no true": "unknown flag: --cpu_bind: did you mean --cpu-bind?",
		"run --kill-on-bad true": "unknown flag: --kill-on-bad: did you mean --kill-on-bad-exit?",
		"run --multiprog f":      "unknown flag: --multiprog: did you mean --multi-prog?",
		"top --iteration=2":      "unknown flag: --iteration: did you mean --iterations?",
		"run --partition=x true": "unknown flag: --partition",
		"run --nosuch true":      "unknown flag: --nosuch",
		"run --x true":           "unknown flag: --x",
		"run -y true":            "unknown shorthand flag: 'y' in -y",
		"cancle 1":               `unknown command "cancle" for "stepctl": did you mean "cancel"?`,
		"time 1.0":               `unknown command "time" for "stepctl": did you mean "timeline"?`,
		"xyzzy":                  `unknown command "xyzzy" for "stepctl"`,
		"ps --al":                "unknown flag: --al: did you mean --all?",
		"run -n":                 "flag needs an argument: 'n' in -n",
	} {
		if err := parsed(t, line); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
	script := []byte("#!/bin/sh\n#SBATCH --job-nam=x\n")
	_, err := scriptOptions(batchCommand(&dialer{}), &plugins{}, "job.sh", script)
	if _, unknown := errors.AsType[*pflag.NotExistError](err); !unknown || !strings.HasSuffix(err.Error(), "did you mean --job-name?") {
		t.Errorf("in a script: %v", err)
	}
}

func TestSlips(t *testing.T) {
	for pair, want := range map[[2]string]int{
		{"", ""}: 0, {"a", ""}: 1, {"", "ab"}: 2, {"label", "label"}: 0, {"lable", "label"}: 1, {"labl", "label"}: 1,
		{"labels", "label"}: 1, {"kitten", "sitting"}: 3, {"ab", "ba"}: 1,
	} {
		if got := slips(pair[0], pair[1]); got != want {
			t.Errorf("slips(%q) = %d, want %d", pair, got, want)
		}
	}
}
