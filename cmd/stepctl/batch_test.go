package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestSplitWords(t *testing.T) {
	for in, want := range map[string][]string{
		"":                          nil,
		" -n 2\t--job-name=x ":      {"-n", "2", "--job-name=x"},
		`--job-name="a b" -o 'c d'`: {"--job-name=a b", "-o", "c d"},
		`a\ b "c\"d" 'e\f'`:         {"a b", `c"d`, `e\f`},
		`-n 2 # the rest "`:         {"-n", "2"},
		`a#b ""`:                    {"a#b", ""},
	} {
		got, err := splitWords(in)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{`"a`, `'a`, `a\`} {
		if got, err := splitWords(in); err == nil {
			t.Errorf("%q was read as %q", in, got)
		}
	}
}

func TestSbatchLines(t *testing.T) {
	script := "#!/bin/sh\n\n# a comment\n#SBATCH -n 2\n#SBATCHED -n 3\n#STEP -c 5 # both\n  #SBATCH\t--wrap=x\necho\n#SBATCH -n 4\n"
	got, err := sbatchLines([]byte(script))
	if want := []string{"-n", "2", "-c", "5", "--wrap=x"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := sbatchLines([]byte("#!/bin/sh\n#SBATCH \"\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v", err)
	}
}

// The command line overrules the script, whatever the order of the two.
func TestScriptOptions(t *testing.T) {
	o := &batchOptions{}
	c := &cobra.Command{Use: "batch"}
	o.bindJob(c)
	o.bindOutput(c, "none", "slurm-%j.out")
	c.Flags().BoolVarP(&o.wait, "wait", "W", false, "")
	if err := c.ParseFlags([]string{"-n", "3", "script"}); err != nil {
		t.Fatal(err)
	}
	p := &plugins{values: map[int]*value{}}
	if err := scriptOptions(c, p, []byte("#!/bin/sh\n#SBATCH -n 2 -c 4 --output=x -vv -W\n")); err != nil {
		t.Fatal(err)
	}
	if o.ntasks != 3 || o.cpus != 4 || o.output != "x" || o.verbose != 2 || !o.wait {
		t.Errorf("got %+v", o)
	}
	for _, bad := range []string{"--no-such", "-n x", "-n 2 word"} {
		if err := scriptOptions(c, p, []byte("#!/bin/sh\n#SBATCH "+bad+"\n")); err == nil || !strings.Contains(err.Error(), "#SBATCH") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzSplitWords(f *testing.F) {
	for _, s := range []string{`a "b c" 'd' \e # f`, `"`, `\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		words, err := splitWords(s)
		n := 0
		for _, w := range words {
			n += len(w)
		}
		if err == nil && n > len(s) {
			t.Fatalf("%q became %q", s, words)
		}
	})
}

func FuzzSbatchLines(f *testing.F) {
	f.Add([]byte("#!/bin/sh\n#SBATCH -n 2\nexit\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		args, err := sbatchLines(b)
		if err == nil && len(args) > len(b) {
			t.Fatalf("%d words of %d bytes", len(args), len(b))
		}
	})
}
