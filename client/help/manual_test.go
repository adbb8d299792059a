package help

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/client/options"
	"stepd/client/plugins"
	"stepd/spank"
)

func TestPluginHelp(t *testing.T) {
	c := &cobra.Command{Use: "run", RunE: func(*cobra.Command, []string) error { return nil }}
	root := &cobra.Command{Use: "stepctl"}
	root.AddCommand(c)
	root.PersistentFlags().String("socket", "", "")
	new(options.Run).Bind(c)
	p := &plugins.Host{Options: []spank.Option{
		{File: "a.so", Plugin: "a", Name: "need", ArgInfo: "WHAT", Usage: "needs one", HasArg: 1},
		{File: "a.so", Plugin: "a", Name: "may", HasArg: 2},
		{File: "b.so", Plugin: "b", Name: "flag", Usage: "takes none"},
		{File: "b.so", Plugin: "b", Name: "ntasks", HasArg: 1},
	}}
	p.AddFlags(c)
	UseManual(root)
	var b bytes.Buffer
	c.SetOut(&b)
	c.SetErr(&b)
	if err := c.Usage(); err != nil {
		t.Fatal(err)
	}
	_, ours, found := strings.Cut(b.String(), "\nOptions of plugin a (a.so):\n")
	if !found {
		t.Fatalf("no section of plugin a in:\n%s", b.String())
	}
	ours, _, _ = strings.Cut(ours, "\nGeneral:\n")
	for _, want := range []string{"--need=WHAT", "needs one", "--may[=ARG]", "\nOptions of plugin b (b.so):\n", "--flag", "takes none"} {
		if !strings.Contains(ours, want) {
			t.Errorf("%q is missing in:\n%s", want, ours)
		}
	}
	if strings.Count(b.String(), "--need") != 1 || strings.Contains(ours, "--ntasks") {
		t.Errorf("an option is in the wrong section:\n%s", b.String())
	}
}
