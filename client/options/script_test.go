package options

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/client/plugins"
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
	if want := (unused{"--partition", "--exclusive", "--account", "--qos", "--mail-type"}); !slices.Equal(o.unused, want) {
		t.Errorf("got %q, want %q", o.unused, want)
	}
	if err := c.ParseFlags([]string{"-s", "-S2", "-q", "high", "--cpu-freq=high", "--time-min=5", "-B", "2:4", "--get-user-env"}); err != nil {
		t.Error(err)
	}
}

// What is counted by GPU or by task becomes tasks, CPUs, memory and generic resources.
func TestGPUs(t *testing.T) {
	for line, want := range map[string]string{ // tasks, CPUs of a task, MB, gres
		"--gpus=2":                                          "1 1 - gpu:2",
		"-G a100:1":                                         "1 1 - gpu:a100:1",
		"--gpus-per-node=3":                                 "1 1 - gpu:3",
		"--gres=nic --gpus=1":                               "1 1 - nic:1,gpu:1",
		"-n3 --gpus-per-task=2":                             "3 1 - gpu:6",
		"-n2 --gpus-per-task=a100:1 --gres=nic":             "2 1 - nic:1,gpu:a100:2",
		"--gpus=4 --gpus-per-task=2":                        "2 1 - gpu:4",
		"--gpus=2 --ntasks-per-gpu=3":                       "6 1 - gpu:2",
		"-n5 --ntasks-per-gpu=2":                            "5 1 - gpu:3",
		"-n2 --gpus=2 --cpus-per-gpu=3":                     "2 3 - gpu:2",
		"-n3 --gpus=2 --cpus-per-gpu=2":                     "3 2 - gpu:2",
		"--gpus=2 --mem-per-gpu=1G":                         "1 1 2048 gpu:2",
		"-n2 --tres-per-task=cpu=4,gres/gpu=1,gres/nic:x=2": "2 4 - gpu:2,nic:x:4",
		"-n2 --gpus-per-task=1 --gpu-bind=none":             "2 1 - gpu:2",
		"--gpus=x":                                          "--gpus=x: want [TYPE:]COUNT",
		"-n3 --gpus=2 --gpus-per-task=1":                    "--gpus-per-task=1: 3 tasks have 3 GPUs, and --gpus=2 asks for 2",
		"-n5 --gpus=2 --ntasks-per-gpu=2":                   "--ntasks-per-gpu=2: 2 GPUs have no room for 5 tasks",
		"--cpus-per-gpu=2":                                  "--cpus-per-gpu is of no use without --gpus, --gpus-per-task or --ntasks-per-gpu",
		"--tres-per-task=license/x=1":                       `--tres-per-task=license/x=1: "license/x": noded gives tasks cpu and gres/NAME alone`,
		"--tres-per-task=gres/gpu":                          `--tres-per-task=gres/gpu: "gres/gpu": want NAME=COUNT`,
	} {
		var o Run
		c := &cobra.Command{Use: "run"}
		o.Bind(c)
		if err := c.ParseFlags(strings.Fields(line)); err != nil {
			t.Fatal(line, err)
		}
		r := step.Request{NTasks: o.NTasks, CPUsPerTask: o.CPUs}
		err := cmp.Or(o.setGPUs(&r), o.resources.setGres(StepOfJob, &r))
		got, mb := errText(err), "-"
		if r.Mem != nil {
			mb = fmt.Sprint(*r.Mem)
		}
		if err == nil {
			var gres []string
			for _, g := range r.Gres {
				gres = append(gres, g.String())
			}
			got = fmt.Sprintf("%d %d %s %s", r.NTasks, r.CPUsPerTask, mb, strings.Join(gres, ","))
		}
		if got != want {
			t.Errorf("%s: %s, want %s", line, got, want)
		}
	}
}

// An option of a script counts as given.
func TestScriptOptionIsGiven(t *testing.T) {
	o := &Batch{}
	c := &cobra.Command{Use: "batch"}
	o.Bind(c)
	if _, err := FromScript(c, &plugins.Host{}, "job.sh", []byte("#!/bin/sh\n#SBATCH -n 2 --ntasks-per-node=4 --gpu-bind=none\n")); err != nil {
		t.Fatal(err)
	}
	r := &step.Request{NTasks: o.NTasks}
	if err := o.nodes.set(r, "n1", false); err != nil || r.NTasks != 2 {
		t.Errorf("%d tasks, %v", r.NTasks, err)
	}
}

func TestExportFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "vars")
	if err := os.WriteFile(file, []byte("A=1 2\x00B=x\ny\x00\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &Run{exportFile: file}
	for export, want := range map[string]string{ // as sbatch of 22.05, measured
		"": "1 2,x\ny", "ALL": "1 2,x\ny", "NONE": ",", "A": "1 2,x\ny", "A=opt": "opt,x\ny",
	} {
		o.export = export
		env, err := o.Environment(&plugins.Host{Env: []string{"A=mine"}}, nil)
		first, _ := LookupIn(env, "A")
		second, _ := LookupIn(env, "B")
		if got := first + "," + second; err != nil || got != want {
			t.Errorf("--export=%s: got %q, %v; want %q", export, got, err, want)
		}
	}
	o.export = ""
	for from, want := range map[string]string{
		"1":                    "--export-file=1: a descriptor above 2 is wanted",
		"testdata/this.nodes":  `--export-file=testdata/this.nodes: "n1\n" is no NAME=VALUE (each is to end with a NUL)`,
		"testdata/no-such-one": "--export-file=testdata/no-such-one: cannot read the variables: open testdata/no-such-one: no such file or directory",
	} {
		o.exportFile = from
		if _, err := o.Environment(&plugins.Host{}, nil); errText(err) != want {
			t.Errorf("%s: got %v, want %s", from, err, want)
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
