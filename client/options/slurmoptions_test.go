package options

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
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
				if got = "unused"; err != nil || !slices.Equal(o.unused, unused{name}) {
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

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
