package options

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// runVerb is run as far as its command line goes.
func runVerb() *cobra.Command {
	root := &cobra.Command{Use: "stepctl"}
	c := &cobra.Command{Use: "run", RunE: func(*cobra.Command, []string) error { return nil }}
	root.AddCommand(c)
	root.PersistentFlags().String("socket", "", "")
	new(Run).Bind(c)
	c.Flags().Bool("standalone", false, "")
	return c
}

func TestPeek(t *testing.T) {
	c := runVerb()
	t.Setenv("SLURM_JOB_ID", "")
	for _, tt := range []struct {
		args string
		want Peeked
	}{
		{"--jobid=7 -n 2 prog", Peeked{Job: 7}},
		{"--jobid 7 prog --jobid 8", Peeked{Job: 7}},
		{"--jobid x prog", Peeked{}},
		{"--socket X -n 2 prog", Peeked{Socket: "X"}},
		{"--socket=X --standalone prog", Peeked{Socket: "X", Standalone: true}},
		{"-n 2 --socket X prog", Peeked{Socket: "X"}},
		{"-ln2 -K --socket X", Peeked{Socket: "X"}},
		{"-n2 -vl -c 3 --socket X", Peeked{Socket: "X"}},
		{"prog --socket X", Peeked{}},
		{"-- --socket X", Peeked{}},
		{"--unknown=1 --socket X", Peeked{Socket: "X"}},
		{"--unknown --socket X", Peeked{Socket: "X"}},
		{"--unknown prog --socket X", Peeked{}},
		{"-n 2 --help", Peeked{Help: true}},
		{"-lh", Peeked{Help: true}},
		{"-J -h", Peeked{}},
		{"-n", Peeked{}},
		{"--socket", Peeked{}},
		{"", Peeked{}},
	} {
		if got := Peek(c, strings.Fields(tt.args)); got != tt.want {
			t.Errorf("%q: got %+v, want %+v", tt.args, got, tt.want)
		}
	}
}

func FuzzPeek(f *testing.F) {
	f.Add("--socket X\n-n2")
	f.Fuzz(func(t *testing.T, s string) {
		c := runVerb()
		Peek(c, strings.Split(s, "\n")) // it returns
	})
}

func TestPeekHelpTopic(t *testing.T) {
	c := runVerb()
	for line, want := range map[string]string{
		"--cpu-bind=help prog": "cpu-bind", "--mem-bind help": "mem-bind", "-n2 --hint=HELP": "hint", "--cpu-bind=cores --job-name=help prog": "", "prog --cpu-bind=help": "",
	} {
		if got := Peek(c, strings.Fields(line)).Topic; got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

func TestWrittenOut(t *testing.T) {
	c := runVerb()
	for in, want := range map[string]string{
		"-K1 true":            "--kill-on-bad-exit=1 true",
		"-n 2 -K0 -l true -K": "-n 2 --kill-on-bad-exit=0 -l true -K",
		"-K true":             "-K true",
		"-ln2 -K1 -- -K1":     "-ln2 --kill-on-bad-exit=1 -- -K1",
		"--output f -K=1 x":   "--output f --kill-on-bad-exit=1 x",
		"sh -K1":              "sh -K1",
	} {
		if got := strings.Join(WrittenOut(c, strings.Fields(in)), " "); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}
