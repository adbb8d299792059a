package options

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/client/plugins"
)

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
	if err := FromEnv(o.nodes.flags, StepOfJob); err != nil || o.Label || o.nodes.flags.Changed("label") {
		t.Errorf("SLURM_LABELIO beside --pty: %t, %v", o.Label, err)
	}
	if o, _, err = parse(t, "prog"); err != nil {
		t.Fatal(err)
	}
	if err := FromEnv(o.nodes.flags, StepOfJob); err != nil || !o.Label {
		t.Errorf("SLURM_LABELIO alone: %t, %v", o.Label, err)
	}

	c := batchVerb()
	if err := c.ParseFlags([]string{"--mem-per-cpu=1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := FromScript(c, &plugins.Host{}, "job.sh", []byte("#!/bin/sh\n#SBATCH --mem=5 -J name\n")); err != nil || c.Flags().Changed("mem") || c.Flags().Lookup("job-name").Value.String() != "name" {
		t.Errorf("#SBATCH --mem beside --mem-per-cpu: %v", err)
	}
	if _, err := FromScript(c, &plugins.Host{}, "job.sh", []byte("#!/bin/sh\n#SBATCH -Q -v\n")); err == nil || !strings.HasPrefix(err.Error(), "job.sh:2: #SBATCH: --quiet and --verbose") {
		t.Errorf("#SBATCH -Q -v: %v", err)
	}
}

func TestUnknownInScript(t *testing.T) {
	script := []byte("#!/bin/sh\n#SBATCH --job-nam=x\n")
	_, err := FromScript(batchVerb(), &plugins.Host{}, "job.sh", script)
	if err == nil || err.Error() != "job.sh:2: #SBATCH: unknown option --job-nam: did you mean --job-name?" {
		t.Errorf("in a script: %v", err)
	}
}
