package report

import (
	"bytes"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"stepd/client"
	"stepd/spank"
	"stepd/spank/lint"
)

func TestPrintPlugins(t *testing.T) {
	r := &lint.Report{
		Plugins: []lint.Plugin{
			{
				Path: "/a.so", File: "/p.conf", Line: 2, Required: true, Args: []string{"x", "y=1"}, State: lint.StateFound, Release: "22.05.8",
				Hooks:   []string{"slurm_spank_init", "slurm_spank_exit"},
				Options: []lint.Option{{Name: "one", HasArg: 1, ArgInfo: "N"}, {Name: "two", HasArg: 2}, {Name: "three"}},
				Missing: []lint.Missing{{Symbol: "f"}, {Symbol: "v", Object: "/lib.so", Fatal: true}},
			},
			{Path: "/b\x1b.so", File: "/p.conf", Line: 3, State: lint.StateMissing},
		},
		Findings: []lint.Finding{
			{Severity: spank.SeverityError, File: "/p.conf", Line: 1, Text: "a word", Remedy: "mend it"},
			{Severity: spank.SeverityWarning, File: "/p.conf", Line: 3, Plugin: "/b\x1b.so", Text: "it is not there"},
			{Severity: spank.SeverityWarning, File: "/p.conf", Text: "the whole file"},
		},
	}
	const want = `/p.conf:2  required  /a.so
  state      found
  arguments  x y=1
  release    22.05.8
  hooks      slurm_spank_init slurm_spank_exit
  options    --one=N, --two[=ARG], --three
  missing    f, v of /lib.so (it cannot be loaded without)
/p.conf:3  optional  /b?.so
  state      missing
  warning    it is not there
/p.conf:1: error: a word; mend it
/p.conf: warning: the whole file
`
	var out bytes.Buffer
	if err := printPlugins(&out, r); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	out.Reset()
	if err := printFindings(&out, r); err != nil {
		t.Fatal(err)
	}
	const lines = "/p.conf:1: error: a word; mend it\n/p.conf:3: warning: it is not there\n/p.conf: warning: the whole file\n"
	if diff := cmp.Diff(lines, out.String()); diff != "" {
		t.Error(diff)
	}
}

// TestBuiltIn: what no plugin can be called.
func TestBuiltIn(t *testing.T) {
	root := &cobra.Command{Use: "stepctl"}
	root.PersistentFlags().String("socket", "", "")
	root.AddCommand(client.RunCommand(&client.Dialer{}), client.AllocCommand(&client.Dialer{}), client.BatchCommand(&client.Dialer{}))
	names := builtIn(root)
	for _, name := range []string{"ntasks", "chdir", "socket", "help", "standalone"} {
		if !slices.Contains(names, name) {
			t.Errorf("--%s is not among %q", name, names)
		}
	}
	if !slices.IsSorted(names) || slices.Contains(names, "") {
		t.Errorf("got %q", names)
	}
}
