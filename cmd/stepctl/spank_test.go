package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/spank"
	"stepd/step"
)

func fakePlugins() *plugins {
	return &plugins{values: make(map[int]*value), options: []spank.Option{
		{File: "a.so", Plugin: "a", Name: "need", ArgInfo: "WHAT", Usage: "needs one", HasArg: 1},
		{File: "a.so", Plugin: "a", Name: "may", HasArg: 2},
		{File: "b.so", Plugin: "b", Name: "flag", Usage: "takes none"},
		{File: "b.so", Plugin: "b", Name: "ntasks", HasArg: 1},
	}}
}

func withPlugins(p *plugins) (*cobra.Command, *runOptions) {
	o := &runOptions{}
	root := &cobra.Command{Use: "stepctl"}
	c := &cobra.Command{Use: "run", RunE: func(*cobra.Command, []string) error { return nil }}
	root.AddCommand(c)
	root.PersistentFlags().String("socket", "", "")
	o.bind(c)
	c.Flags().Bool("standalone", false, "")
	p.addFlags(c)
	return c, o
}

func TestPluginFlags(t *testing.T) {
	p := fakePlugins()
	c, o := withPlugins(p)
	if err := c.ParseFlags([]string{"--may=1", "-n2", "--flag", "--need", "x", "--may", "--need=y=z", "prog", "--flag"}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, g := range p.given {
		text := "NULL"
		if g.value != nil {
			text = string(g.value)
		}
		got = append(got, p.options[g.option].Name+":"+text)
	}
	if want := []string{"may:1", "flag:NULL", "need:x", "may:NULL", "need:y=z"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if o.ntasks != 2 {
		t.Errorf("a plugin took --ntasks: %d", o.ntasks)
	}
	for _, bad := range [][]string{{"--need"}, {"--flag=x"}, {"--other"}} {
		if err := c.ParseFlags(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestPluginHelp(t *testing.T) {
	c, _ := withPlugins(fakePlugins())
	useManual(c.Root())
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

func TestPeek(t *testing.T) {
	c, _ := withPlugins(&plugins{})
	for _, tt := range []struct {
		args string
		want peeked
	}{
		{"--socket X -n 2 prog", peeked{socket: "X"}},
		{"--socket=X --standalone prog", peeked{socket: "X", standalone: true}},
		{"-n 2 --socket X prog", peeked{socket: "X"}},
		{"-ln2 -K --socket X", peeked{socket: "X"}},
		{"-n2 -vl -c 3 --socket X", peeked{socket: "X"}},
		{"prog --socket X", peeked{}},
		{"-- --socket X", peeked{}},
		{"--unknown=1 --socket X", peeked{socket: "X"}},
		{"--unknown --socket X", peeked{socket: "X"}},
		{"--unknown prog --socket X", peeked{}},
		{"-n 2 --help", peeked{help: true}},
		{"-lh", peeked{help: true}},
		{"-J -h", peeked{}},
		{"-n", peeked{}},
		{"--socket", peeked{}},
		{"", peeked{}},
	} {
		if got := peek(c, strings.Fields(tt.args)); got != tt.want {
			t.Errorf("%q: got %+v, want %+v", tt.args, got, tt.want)
		}
	}
}

func FuzzPeek(f *testing.F) {
	f.Add("--socket X\n-n2")
	f.Fuzz(func(t *testing.T, s string) {
		c, _ := withPlugins(&plugins{})
		peek(c, strings.Split(s, "\n")) // it returns
	})
}

func TestPluginEnvironment(t *testing.T) {
	p := fakePlugins()
	p.values[0], p.values[2] = &value{[]byte("v 1")}, &value{}
	p.jobControl = [][]byte{[]byte("JC=x")}
	if got, want := p.optionEnv(), []string{"_SLURM_SPANK_OPTION_a_need=v 1", "_SLURM_SPANK_OPTION_b_flag="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	want := []string{
		"SLURM_SPANK_JC=x", "SLURM_SPANK__SLURM_SPANK_OPTION_a_need=v 1", "SLURM_SPANK__SLURM_SPANK_OPTION_b_flag=(null)",
	}
	p.jobControl = append(p.jobControl, []byte("LONG="+strings.Repeat("x", step.VariableMax)))
	if got := p.jobEnv(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	t.Setenv("SLURM_SPANK__SLURM_SPANK_OPTION_c_gone", "(null)")
	t.Setenv("SLURM_SPANK__SLURM_SPANK_OPTION_a_may", "known here")
	if got, want := p.replayed(), []string{"_SLURM_SPANK_OPTION_c_gone="}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
