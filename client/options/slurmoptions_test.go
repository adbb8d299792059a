package options

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/client/plugins"
	"stepd/step"
)

// Every option of srun, sbatch and salloc is served, or accepted and named as without effect, or refused
// with a reason; and it has the letter and takes the argument that Slurm's has.
func TestSlurmOptions(t *testing.T) {
	// help is cobra's own, wrap no option of a script.
	elsewhere := []string{"help", "wrap"}
	b, err := os.ReadFile("testdata/slurm-options.tsv")
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") || slices.Contains(elsewhere, f[0]) {
			continue
		}
		name, letter, argument, class := f[0], strings.Trim(f[1], "-"), f[2], f[4]
		for command := range strings.SplitSeq(f[3], ",") {
			checked++
			o := &Batch{}
			c := &cobra.Command{Use: command, SilenceErrors: true, SilenceUsage: true}
			map[string]func(*cobra.Command){"srun": o.Run.Bind, "sbatch": o.Bind, "salloc": o.BindAlloc}[command](c)
			flag := c.Flags().Lookup(name)
			if flag == nil {
				t.Errorf("%s --%s: there is no such option", command, name)
				continue
			}
			if letter != "" && flag.Shorthand != letter {
				t.Errorf("%s --%s has the letter %q, want %q", command, name, flag.Shorthand, letter)
			}
			if bare := flag.NoOptDefVal != ""; bare != (argument != "needed") {
				t.Errorf("%s --%s may stand without an argument: %t, and Slurm's takes one: %s", command, name, bare, argument)
			}
			err := c.ParseFlags([]string{"--" + name + "=some"})
			got := "served"
			switch reason := strings.TrimPrefix(errText(err), "invalid argument \"some\" for \""); flag.Value.(type) {
			case *unusedFlag:
				if got = "unused"; err != nil || !slices.Equal(o.unused, unused{"--" + name}) {
					t.Errorf("%s --%s: %v, and %q are named", command, name, err, o.unused)
				}
			case *refusedFlag:
				if got = "refused"; !strings.Contains(reason, "--"+name+" is not supported: ") || strings.HasSuffix(reason, ": ") {
					t.Errorf("%s --%s: %v", command, name, err)
				}
			}
			if got != class {
				t.Errorf("%s --%s is %s, want %s", command, name, got, class)
			}
		}
	}
	if checked < 350 {
		t.Errorf("%d options were checked", checked)
	}
}

// Every variable that srun, sbatch or salloc reads is served, or named as its option without effect is, or
// refused as its option is, or ignored for a reason.
func TestSlurmVariables(t *testing.T) {
	b, err := os.ReadFile("testdata/slurm-variables.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range os.Environ() { // the test may run in a job
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, "SLURM_") {
			t.Setenv(name, "")
		}
	}
	// outcome is what becomes of a command line in the environment as it is, and what is said of it.
	outcome := func(t *testing.T, command string) (effect, words string) {
		o := &Batch{}
		c := &cobra.Command{Use: command, SilenceErrors: true, SilenceUsage: true}
		map[string]func(*cobra.Command){"srun": o.Run.Bind, "sbatch": o.Bind, "salloc": o.BindAlloc}[command](c)
		kind := map[string]Kind{"srun": StepOfJob, "sbatch": BatchJob, "salloc": Allocation}[command]
		if err := c.ParseFlags(nil); err != nil {
			t.Fatal(err)
		}
		err := FromEnv(c.Flags(), kind)
		if err == nil {
			err = o.FromJob(c)
		}
		words = said(t, o.TellUnused)
		for _, f := range setFlags(c) {
			effect += f.Name + "=" + f.Value.String() + " "
		}
		if err == nil {
			var r *step.Request
			r, err = o.Request(kind, []string{"/no/such/program"}, &plugins.Host{Node: "n1"})
			text, jerr := json.Marshal(r)
			if jerr != nil {
				t.Fatal(jerr)
			}
			effect += string(text)
		}
		return effect + errText(err), words
	}
	checked := 0
	for line := range strings.Lines(string(b)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if strings.HasPrefix(line, "#") || f[0] == "SLURM_MPI_TYPE" { // package client reads that one
			continue
		}
		name, class, value, beside := f[0], f[2], f[3], f[4]
		for command := range strings.SplitSeq(f[1], ",") {
			checked++
			t.Run(command+" "+name, func(t *testing.T) {
				if other, text, ok := strings.Cut(beside, "="); ok && class == "served" {
					t.Setenv(other, text)
				}
				before, _ := outcome(t, command)
				t.Setenv(name, value)
				after, words := outcome(t, command)
				got := "ignored"
				switch {
				case strings.HasPrefix(after, name+"=") && strings.Contains(after, " is not supported: "):
					got = "refused"
				case strings.HasPrefix(words, "stepctl: without effect, since ") && strings.HasSuffix(words, ": "+name+"\n"):
					got = "unused"
				case words != "":
					got = words
				case before != after:
					got = "served"
				}
				if got != class {
					t.Errorf("it is %s, want %s: %s", got, class, after)
				}
				if class == "ignored" && len(beside) < 10 {
					t.Errorf("without a reason")
				}
			})
		}
	}
	if checked < 190 {
		t.Errorf("%d variables were checked", checked)
	}
}

// A variable is named in the one line of the options, and the command line's word overrules it.
func TestUnusedVariables(t *testing.T) {
	t.Setenv("SBATCH_PARTITION", "debug")
	t.Setenv("SBATCH_QOS", "high")
	t.Setenv("SLURM_ACCOUNT", "another verb's")
	o := &Batch{}
	c := &cobra.Command{Use: "batch"}
	o.Bind(c)
	if err := c.ParseFlags([]string{"-q", "low", "-A", "a"}); err != nil {
		t.Fatal(err)
	}
	if err := FromEnv(c.Flags(), BatchJob); err != nil {
		t.Fatal(err)
	}
	if _, err := FromScript(c, &plugins.Host{}, "job.sh", []byte("#!/bin/sh\n#SBATCH -p other --comment=x\n")); err != nil {
		t.Fatal(err)
	}
	if got, want := said(t, o.TellUnused), "stepctl: without effect, since there is no queue and one node: --account, --comment, SBATCH_PARTITION, --qos\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
