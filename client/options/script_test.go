package options

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/client/plugins"
	"stepd/srunopt"
	"stepd/step"
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
		got, err := SplitWords(in)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{`"a`, `'a`, `a\`} {
		if got, err := SplitWords(in); err == nil {
			t.Errorf("%q was read as %q", in, got)
		}
	}
}

func TestSbatchLines(t *testing.T) {
	script := "#!/bin/sh\n\n# a comment\n#SBATCH -n 2\n#SBATCHED -n 3\n#STEP -c 5 # both\n  #SBATCH\t--wrap=x\necho\n#SBATCH -n 4\n"
	got, err := sbatchLines("job.sh", []byte(script))
	want := []scriptLine{
		{"job.sh:4", "#SBATCH", []string{"-n", "2"}}, {"job.sh:6", "#STEP", []string{"-c", "5"}}, {"job.sh:7", "#SBATCH", []string{"--wrap=x"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := sbatchLines("job.sh", []byte("#!/bin/sh\n#SBATCH \"\n")); err == nil || !strings.HasPrefix(err.Error(), "job.sh:2: #SBATCH: the quote") {
		t.Errorf("got %v", err)
	}
}

// The command line overrules the script, whatever the order of the two.
func TestScriptOptions(t *testing.T) {
	o := &Batch{}
	c := &cobra.Command{Use: "batch"}
	o.Bind(c)
	if err := c.ParseFlags([]string{"-n", "3", "script"}); err != nil {
		t.Fatal(err)
	}
	p := &plugins.Host{}
	lines, err := FromScript(c, p, "job.sh", []byte("#!/bin/sh\n#SBATCH -n 2 -c 4\n#SBATCH --output=x -vv -W\n#SBATCH -t soon\n"))
	if err != nil {
		t.Fatal(err)
	}
	if want := (Lines{"--cpus-per-task": "job.sh:2", "--output": "job.sh:3", "--verbose": "job.sh:3", "--wait": "job.sh:3", "--time": "job.sh:4"}); !maps.Equal(lines, want) {
		t.Errorf("lines %v, want %v", lines, want)
	}
	// What is found wrong later is told with the line, too.
	if err := lines.Locate(o.Programs.setTime(new(step.Request))); err == nil || !strings.HasPrefix(err.Error(), "job.sh:4: #SBATCH: --time=soon: ") {
		t.Errorf("got %v", err)
	}
	if err := lines.Locate(errors.New("--ntasks=0: no")); err.Error() != "--ntasks=0: no" {
		t.Errorf("the command line's option: %v", err)
	}
	if o.NTasks != 3 || o.CPUs != 4 || o.output != "x" || o.Verbose != 2 || !o.Wait {
		t.Errorf("got %+v", o)
	}
	for _, bad := range []string{"--no-such", "-n x", "-n 2 word"} {
		_, err := FromScript(c, p, "job.sh", []byte("#!/bin/sh\n#SBATCH "+bad+"\n"))
		if err == nil || !strings.HasPrefix(err.Error(), "job.sh:2: #SBATCH: ") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// All lines of a script that are wrong are reported, each with its place.
func TestScriptWrongLines(t *testing.T) {
	_, err := FromScript(batchVerb(), &plugins.Host{}, "job.sh", []byte("#!/bin/sh\n#SBATCH --no-such\n#SBATCH -p debug\n#SBATCH -n x\n#SBATCH -J name word\n"))
	const want = `job.sh:2: #SBATCH: unknown option --no-such: see stepctl batch --help
job.sh:4: #SBATCH: --ntasks=x: want a whole number
job.sh:5: #SBATCH: "word" is no option`
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %q", err, want)
	}
}

// What is for a queue has no effect, in a script and on the command line.
func TestUnused(t *testing.T) {
	o := &Batch{}
	c := &cobra.Command{Use: "batch"}
	o.Bind(c)
	if err := c.ParseFlags([]string{"-p", "debug", "--exclusive", "script"}); err != nil {
		t.Fatal(err)
	}
	if _, err := FromScript(c, &plugins.Host{}, "job.sh", []byte("#!/bin/sh\n#SBATCH -A acct --qos=high\n#SBATCH --exclusive=user -p other\n#SBATCH --mail-type=END\n")); err != nil {
		t.Fatal(err)
	}
	if want := (unused{"partition", "exclusive", "account", "qos", "mail-type"}); !slices.Equal(o.unused, want) {
		t.Errorf("got %q, want %q", o.unused, want)
	}
	if err := c.ParseFlags([]string{"-s", "-S2", "--cpu-freq=high", "--time-min=5", "-B", "2:4", "--get-user-env"}); err != nil {
		t.Error(err)
	}
}

func TestGPUs(t *testing.T) {
	for line, want := range map[string]string{
		"--gpus=2": "gpu:2", "-G a100:1": "gpu:a100:1", "--gpus-per-node=3": "gpu:3", "--gres=nic --gpus=1": "nic,gpu:1",
	} {
		var o Run
		c := &cobra.Command{Use: "run"}
		o.Bind(c)
		if err := c.ParseFlags(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		var r step.Request
		wanted, err := srunopt.ParseGres(want)
		if err := errors.Join(err, o.resources.setGres(StepOfJob, &r)); err != nil || !reflect.DeepEqual(r.Gres, wanted) {
			t.Errorf("%s: %v, %v; want %v", line, r.Gres, err, wanted)
		}
	}
}

func FuzzSplitWords(f *testing.F) {
	for _, s := range []string{`a "b c" 'd' \e # f`, `"`, `\`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		words, err := SplitWords(s)
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
		args, err := sbatchLines("script", b)
		if err == nil && len(args) > len(b) {
			t.Fatalf("%d words of %d bytes", len(args), len(b))
		}
	})
}

// batchVerb is batch as far as its command line goes.
func batchVerb() *cobra.Command {
	c := &cobra.Command{Use: "batch"}
	new(Batch).Bind(c)
	return c
}
