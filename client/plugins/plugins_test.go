package plugins

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/spank"
	"stepd/step"
)

func fakePlugins() *Host {
	return &Host{values: make(map[int][]byte), Options: []spank.Option{
		{File: "a.so", Plugin: "a", Name: "need", ArgInfo: "WHAT", Usage: "needs one", HasArg: 1},
		{File: "a.so", Plugin: "a", Name: "may", HasArg: 2},
		{File: "b.so", Plugin: "b", Name: "flag", Usage: "takes none"},
		{File: "b.so", Plugin: "b", Name: "ntasks", HasArg: 1},
	}}
}

func TestPluginEnvironment(t *testing.T) {
	p := fakePlugins()
	p.values[0], p.values[2] = []byte("v 1"), nil
	p.jobControl = [][]byte{[]byte("JC=x")}
	if got, want := p.OptionEnv(), []string{"_SLURM_SPANK_OPTION_a_need=v 1", "_SLURM_SPANK_OPTION_b_flag="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	want := []string{
		"SLURM_SPANK_JC=x", "SLURM_SPANK__SLURM_SPANK_OPTION_a_need=v 1", "SLURM_SPANK__SLURM_SPANK_OPTION_b_flag=(null)",
	}
	p.jobControl = append(p.jobControl, []byte("LONG="+strings.Repeat("x", step.VariableMax)))
	if got := p.JobEnv(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPluginFlags(t *testing.T) {
	p := fakePlugins()
	c := &cobra.Command{Use: "run"}
	ntasks := c.Flags().IntP("ntasks", "n", 1, "")
	c.Flags().SetInterspersed(false)
	p.AddFlags(c)
	if err := c.ParseFlags([]string{"--may=1", "-n2", "--flag", "--need", "x", "--may", "--need=y=z", "prog", "--flag"}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range p.given {
		text := "NULL"
		if g.value != nil {
			text = string(g.value)
		}
		got = append(got, p.Options[g.option].Name+":"+text)
	}
	if want := []string{"may:1", "flag:NULL", "need:x", "may:NULL", "need:y=z"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if *ntasks != 2 {
		t.Errorf("a plugin took --ntasks: %d", *ntasks)
	}
	for _, bad := range [][]string{{"--need"}, {"--flag=x"}, {"--other"}} {
		if err := c.ParseFlags(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
