package options

import (
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"stepd/step"
)

func TestExported(t *testing.T) {
	t.Setenv("HERE", "yes")
	environ := []string{"PATH=/bin", "SLURM_JOB_ID=1", "HERE=yes"}
	for _, tt := range []struct {
		spec string
		want []string
	}{
		{"ALL", environ},
		{"NONE", []string{"SLURM_JOB_ID=1"}},
		{"HERE,NEW=1,GONE", []string{"SLURM_JOB_ID=1", "HERE=yes", "NEW=1"}},
		{"ALL,NEW=a=b", append(slices.Clone(environ), "NEW=a=b")},
	} {
		got, err := exported(tt.spec, environ)
		if err != nil || !cmp.Equal(got, tt.want) {
			t.Errorf("--export=%s: %v, %v", tt.spec, got, err)
		}
	}
	if _, err := exported("=x", environ); err == nil {
		t.Error("--export==x was accepted")
	}
}

// parse reads a command line as run does.
func parse(t *testing.T, args ...string) (*Run, []string, error) {
	t.Helper()
	o := &Run{}
	c := &cobra.Command{Use: "run", RunE: func(*cobra.Command, []string) error { return nil }, SilenceErrors: true, SilenceUsage: true}
	o.Bind(c)
	c.SetArgs(args)
	err := c.Execute()
	return o, c.Flags().Args(), err
}

func TestOptions(t *testing.T) {
	o, argv, err := parse(t, "-n4", "-c", "2", "-J", "name", "-l", "-O", "-K", "-vv", "-i", "none", "-o", "out.%t", "--mpi=pmi2", "prog", "-n", "9")
	if err != nil {
		t.Fatal(err)
	}
	if o.NTasks != 4 || o.CPUs != 2 || o.Name != "name" || !o.Label || !o.overcommit || o.killOnBadExit != "1" || o.Verbose != 2 || o.MPI != "pmi2" {
		t.Errorf("options: %+v", o)
	}
	if !slices.Equal(argv, []string{"prog", "-n", "9"}) {
		t.Errorf("command: %q", argv)
	}
	r := &step.Request{NTasks: 4}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := o.setStreams(r, null); err != nil {
		t.Fatal(err)
	}
	if r.Stdin.Kind != step.StreamNull || r.Stdout.Pattern != "out.%t" || r.Stderr.Kind != step.StreamSame {
		t.Errorf("streams: %+v %+v %+v", r.Stdin, r.Stdout, r.Stderr)
	}
	for _, bad := range [][]string{{"--no-such"}, {"-n", "x"}, {"-n"}} {
		if _, _, err := parse(t, bad...); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestStreamForms(t *testing.T) {
	two := 2
	for _, tt := range []struct {
		value string
		want  step.Stream
		bad   bool
	}{
		{"all", step.Stream{Kind: step.StreamClient}, false},
		{"none", step.Stream{Kind: step.StreamNull}, false},
		{"2", step.Stream{Kind: step.StreamClient, Rank: &two}, false},
		{"3", step.Stream{}, true},
		{"", step.Stream{}, true},
		{"f.%t", step.Stream{Kind: step.StreamFile, Pattern: "f.%t"}, false},
	} {
		got, err := stream(tt.value, 3)
		if (err != nil) != tt.bad || (err == nil && !cmp.Equal(got, tt.want)) {
			t.Errorf("stream(%q) = %+v, %v", tt.value, got, err)
		}
	}
}

func TestNameOf(t *testing.T) {
	for command, want := range map[string]string{"/bin/true": "true", "/tmp/a\x1b[1mb\u009b": "a?[1mb?"} {
		if got := NameOf(command); got != want {
			t.Errorf("the step of %q is named %q, want %q", command, got, want)
		}
	}
}

func TestParseSignal(t *testing.T) {
	for s, want := range map[string]int{"TERM": 15, "sigterm": 15, "KILL": 9, "10": 10, "64": 64} {
		if got, err := ParseSignal(s); err != nil || got != want {
			t.Errorf("parseSignal(%q) = %d, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "0", "65", "-1", "NOSUCH"} {
		if got, err := ParseSignal(s); err == nil {
			t.Errorf("parseSignal(%q) = %d", s, got)
		}
	}
}
