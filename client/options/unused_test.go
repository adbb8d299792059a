package options

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// said is what is written to standard error meanwhile.
func said(t *testing.T, do func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr := os.Stderr
	os.Stderr = w
	do()
	os.Stderr = stderr
	w.Close()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSlurmCommands: every row of the table gives the hint. cmd/stepctl compares the rows with its verbs.
func TestSlurmCommands(t *testing.T) {
	if len(slurmCommands) != 10 {
		t.Errorf("there are %d rows: cmd/stepctl compares 10", len(slurmCommands))
	}
	for word, verb := range slurmCommands {
		err := UnknownVerb(&cobra.Command{Use: "stepctl"}, fmt.Errorf("unknown command %q for %q", word, "stepctl"))
		if want := fmt.Sprintf("unknown command %q: what %s does for Slurm does %s", word, word, verb); err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	for word, now := range leftVerbs {
		err := UnknownVerb(&cobra.Command{Use: "stepctl"}, fmt.Errorf("unknown command %q for %q", word, "stepctl"))
		if want := "stepctl " + word + " is not supported: " + now; err.Error() != want {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestTellUnused: run, batch and alloc take every option without effect, with and without a value,
// long and short, and name all of them in one line for each reason, each once; --quiet says nothing,
// and neither does a command without such options.
func TestTellUnused(t *testing.T) {
	for _, verb := range []string{"run", "batch", "alloc"} {
		for _, how := range []string{"all", "quiet", "none"} {
			o, c := new(Run), &cobra.Command{Use: verb}
			switch verb {
			case "run":
				o.Bind(c)
			case "alloc":
				o.BindJob(c)
			default:
				b := new(Batch)
				b.Bind(c)
				o = &b.Run
			}
			var args, queue, here []string
			for _, u := range unusedOptions {
				if u.here {
					here = append(here, "--"+u.name)
				} else {
					queue = append(queue, "--"+u.name)
				}
				switch {
				case u.bare:
					args = append(args, "--"+u.name, "--"+u.name+"=x")
				default:
					args = append(args, "--"+u.name, "x")
				}
				if u.short != "" && !u.bare {
					args = append(args, "-"+u.short, "x")
				}
			}
			want := "stepctl: without effect, since there is no queue and one node: " + strings.Join(queue, ", ") + "\n" +
				"stepctl: without effect, since noded does not do it: " + strings.Join(here, ", ") + "\n"
			switch how {
			case "quiet":
				args, want = append(args, "-Q"), ""
			case "none":
				args, want = nil, ""
			}
			if err := c.ParseFlags(args); err != nil {
				t.Fatalf("%s: %v", verb, err)
			}
			if c.Flags().NArg() > 0 {
				t.Errorf("%s: %q are left", verb, c.Flags().Args())
			}
			if got := said(t, o.TellUnused); got != want {
				t.Errorf("%s, %s: got %q, want %q", verb, how, got, want)
			}
		}
	}
}
